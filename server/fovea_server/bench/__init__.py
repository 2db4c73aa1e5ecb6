"""Measures a running server: load in a process of its own, figures, charts."""
