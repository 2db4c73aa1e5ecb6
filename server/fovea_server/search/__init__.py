"""Finds the images of an index that are most like others."""
