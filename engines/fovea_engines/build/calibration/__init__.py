"""Measures the ranges of a network's tensors on images."""
