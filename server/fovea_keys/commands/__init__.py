"""`fovea key`."""
