"""Pipelines: a model made of a detector and other models that run on the detected objects."""
