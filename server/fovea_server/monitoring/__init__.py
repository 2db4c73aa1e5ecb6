"""Watches what models get and find: captures and drift."""
