"""Runtimes that execute an engine: one file each."""
