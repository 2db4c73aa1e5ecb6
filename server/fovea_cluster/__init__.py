"""Serves from stores, and on a cluster of Ray."""
