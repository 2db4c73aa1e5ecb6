"""Measures accuracy on labelled images: reads label formats, and compares labels with results."""
