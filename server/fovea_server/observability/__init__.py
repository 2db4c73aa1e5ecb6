"""Counters and histograms of models; logs and traces of requests."""
