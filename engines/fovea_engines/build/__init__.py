"""Builds engines from ONNX models, and compares each engine with its source before publication."""
