"""Writing an arithmetic precision into an ONNX graph."""
