"""Pipelines: models that consist of a detector and of models for the detected objects."""
