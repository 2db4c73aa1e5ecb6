"""INT8: ranges of tensors measured on images, blocks that stay in float, and the graphs."""
