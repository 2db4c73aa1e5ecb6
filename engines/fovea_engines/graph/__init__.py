"""Passes over the ONNX graph."""
