"""Reads, checks and transforms ONNX graphs."""
