"""Bytes to an upright RGB picture."""
