"""Defines what the results of whole images share, so that a new kind is one class."""

from __future__ import annotations


class Value:
    """A result of a whole image."""

    __slots__ = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return what it is, for people."""
        raise NotImplementedError
