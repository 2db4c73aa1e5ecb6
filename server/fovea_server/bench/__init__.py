"""Measures a running server: load from a separate process, figures, charts."""
