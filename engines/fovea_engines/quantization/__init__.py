"""Converts graphs to INT8 and FP16, and decides which layers stay float."""
