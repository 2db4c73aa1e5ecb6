"""Defines what the results of whole images share, so that a new kind is one class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar


class Value:
    """A result of a whole image.

    Attributes:
        COLUMNS: of the table that `rows` fills; none where it fits into no table.
    """

    __slots__ = ()
    COLUMNS: ClassVar[tuple[str, ...]] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Return what it is, for people."""
        raise NotImplementedError

    def rows(self) -> Iterator[Mapping[str, object]]:
        """Yield its rows of a table, each with a value for every name in `COLUMNS`."""
        return iter(())
