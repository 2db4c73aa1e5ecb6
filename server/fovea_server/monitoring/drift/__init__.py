"""Compares what a model gets with the images of its build."""
