"""Uses one NVIDIA GPU: memory, streams, events, graphs and kernels."""
