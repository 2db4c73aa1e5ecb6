"""FP16 and INT8, written into an ONNX graph."""
