"""Runs models over folders, globs and videos, and writes files of results."""
