"""The ONNX graph on its way to an engine."""
