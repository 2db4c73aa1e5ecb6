"""Wraps one NVIDIA GPU: its memory, streams, events, CUDA graphs and kernels."""
