"""Builds checked engines from ONNX: preparation, choice of a runtime, acceptance."""
