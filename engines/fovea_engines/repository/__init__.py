"""Stores engines, cards, config.pbtxt and labels on disk, in the layout of a Triton repository."""
