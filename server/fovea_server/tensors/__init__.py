"""Tensors of requests and responses: messages, datatypes, signatures, checks."""
