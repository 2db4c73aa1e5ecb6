"""Finds the fastest settings for serving a model."""
