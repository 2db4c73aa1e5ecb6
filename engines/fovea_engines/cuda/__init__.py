"""One NVIDIA GPU: memory, streams, events, graphs and kernels, behind one small layer."""
