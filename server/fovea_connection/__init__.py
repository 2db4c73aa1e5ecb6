"""HTTP/1.1 connections: limits on requests, and a short path for /v2 and for predict."""
