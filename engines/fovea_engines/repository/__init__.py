"""Stores engines on disk in Triton's layout: cards, config.pbtxt, labels, version directories."""
