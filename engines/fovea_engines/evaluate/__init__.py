"""Measures how good an engine is: accuracy with labels, agreement without."""
