"""Converts bytes to a model's input, and maps results back."""
