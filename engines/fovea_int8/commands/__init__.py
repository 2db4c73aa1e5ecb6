"""`fovea sensitivity`."""
