"""Measures how good an engine is: how far it agrees with its source, and its speed."""
