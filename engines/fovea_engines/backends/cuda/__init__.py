"""One NVIDIA GPU: memory, streams, events, graphs and kernels."""
