"""Tensors as requests and answers carry them: messages, datatypes, signatures, checks."""
