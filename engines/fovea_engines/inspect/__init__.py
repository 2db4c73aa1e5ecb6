"""Compares two models, or two precisions of one model, layer by layer."""
