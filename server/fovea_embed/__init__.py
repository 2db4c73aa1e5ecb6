"""Vectors of texts, over HTTP; what they cost is counted."""
