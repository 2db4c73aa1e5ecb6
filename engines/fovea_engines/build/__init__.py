"""Builds verified engines from ONNX: prepares the model, chooses a runtime, accepts or rejects."""
