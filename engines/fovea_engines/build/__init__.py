"""Builds checked engines from ONNX: precision, calibration, compilation, gate, report."""
