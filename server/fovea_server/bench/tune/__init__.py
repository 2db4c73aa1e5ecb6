"""Finds the settings of a model with which it is served fastest."""
