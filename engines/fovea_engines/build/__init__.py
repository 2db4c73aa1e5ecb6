"""ONNX to a checked engine: precision, calibration, compilation, gate, report."""
