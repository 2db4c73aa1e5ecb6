"""Streams: a model on the frames of a camera, as it comes."""
