"""Triton's v2 protocol, whatever carries it: messages, checks, extensions."""
