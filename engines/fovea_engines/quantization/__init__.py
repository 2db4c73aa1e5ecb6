"""INT8 and FP16: ranges of tensors measured on images, blocks that stay in float, the graphs."""
