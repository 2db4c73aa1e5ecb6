"""Transforms ONNX graphs."""
