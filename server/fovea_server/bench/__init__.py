"""Measures a running server: puts load on it from a separate process, and draws charts."""
