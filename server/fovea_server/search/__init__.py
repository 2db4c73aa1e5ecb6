"""Similarity search: finds the images of an index that are most similar to an image or a text."""
