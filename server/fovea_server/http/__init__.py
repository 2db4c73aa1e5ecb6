"""HTTP: images under /v1, tensors under /v2, and the connection that carries both."""
