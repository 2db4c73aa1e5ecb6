"""Compares two models, or two precisions of one, layer by layer."""
