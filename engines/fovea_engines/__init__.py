"""Converts ONNX to engines, and runs engines: images to arrays, arrays to detections."""
