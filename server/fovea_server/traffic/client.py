"""The client of the request that is being answered, for the fair order of images."""

from __future__ import annotations

from contextvars import ContextVar

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Address of the peer; empty where it is not known."""
