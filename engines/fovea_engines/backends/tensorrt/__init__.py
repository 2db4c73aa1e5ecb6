"""TensorRT 10 and 11 and TensorRT for RTX: builds plans and runs them."""
