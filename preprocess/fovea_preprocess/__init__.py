"""Converts bytes to the input of a model, and maps results back to the image."""
