"""ONNX to engines, engines to arrays, arrays to detections."""
