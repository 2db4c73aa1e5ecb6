"""Builds and runs plans with TensorRT 10 and 11, and with TensorRT for RTX."""
