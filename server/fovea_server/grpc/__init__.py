"""Serves Triton's v2 protocol over gRPC."""
