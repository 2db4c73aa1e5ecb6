"""Serves on a cluster of Ray."""
