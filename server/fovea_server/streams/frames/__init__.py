"""Frames of cameras and videos: addresses, decoding, reconnects."""
