"""Measures the agreement of an engine's results with its source model's. It needs no labels."""
