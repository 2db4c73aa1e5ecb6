"""Reads models, and compares two models layer by layer, e.g. two precisions of one model."""
