"""Runs models on directories, globs and videos, and writes the results to files."""
