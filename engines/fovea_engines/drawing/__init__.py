"""Draws results of models into images."""
