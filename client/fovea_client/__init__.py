"""A small typed client for a Fovea server."""
