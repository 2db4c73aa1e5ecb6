"""Pipelines: one model made of a detector and others that look at what it finds."""
