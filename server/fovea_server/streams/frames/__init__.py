"""Frames of cameras and videos: source addresses, decoding, reconnects."""
