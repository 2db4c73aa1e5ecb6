"""TensorRT 10 and 11 and TensorRT for RTX: plans are built, held and run."""
