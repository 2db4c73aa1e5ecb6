"""Counters and histograms of models, and their text for Prometheus."""
