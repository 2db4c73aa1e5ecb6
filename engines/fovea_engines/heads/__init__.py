"""Decodes raw outputs into detections, with one file per family."""
