"""Keeps images that a model has answered, with its results."""
