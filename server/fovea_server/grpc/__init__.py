"""The v2 protocol over gRPC."""
