"""Measures how an engine agrees with its source model; needs no labels."""
