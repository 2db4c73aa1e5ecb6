"""From ONNX to engines, from engines to arrays, from arrays to detections."""
