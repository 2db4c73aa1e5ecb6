"""Triton's v2 protocol over HTTP: a lean way of its own beside FastAPI.

The hot path parses with orjson, keeps tensors as views into the body, and answers with buffers.
"""
