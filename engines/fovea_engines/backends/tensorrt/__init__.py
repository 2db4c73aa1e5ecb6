"""Builds and runs plans (compiled engines) with TensorRT 10 and 11, and with TensorRT for RTX."""
