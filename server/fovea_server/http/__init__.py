"""HTTP: images under /v1, tensors under /v2, and the HTTP/1.1 connections for both."""
