"""Families of detectors, and of other tasks, beside YOLO's."""
