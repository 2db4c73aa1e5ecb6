"""Runs models on directories, globs and videos, and writes files of results."""
