"""The HTTP server: images under /v1, tensors under /v2, and HTTP/1.1 connections."""
