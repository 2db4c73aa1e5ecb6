"""Monitors the inputs and results of models: captures and data drift."""
