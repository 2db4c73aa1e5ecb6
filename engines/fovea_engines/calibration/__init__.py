"""What values a network sees, and from them the ranges of its tensors."""
