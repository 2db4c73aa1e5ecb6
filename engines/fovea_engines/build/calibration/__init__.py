"""The ranges of a network's tensors, measured on images."""
