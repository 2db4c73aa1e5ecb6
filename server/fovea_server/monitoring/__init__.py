"""Monitors the inputs and results of models: captures of images, and data drift."""
