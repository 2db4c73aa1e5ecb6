"""What owns something until it is closed, as a context manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Closes itself at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Calling it again does nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
