"""Vectors of texts, over HTTP; the texts are counted."""
