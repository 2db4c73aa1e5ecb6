"""HTTP/1.1 connections: bounds on what clients send, and a short path for /v2."""
