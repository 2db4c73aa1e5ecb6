"""Frames of cameras and videos: addresses, decoding, coming back."""
