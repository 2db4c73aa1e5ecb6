"""Drawings of what models find, one file for each kind of result."""
