"""Phases of long work, as they are recorded and as they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Progress:
    """Times phases, in silence.

    Attributes:
        seconds: by phase, in the order they ended.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block. One that raises is not recorded."""
        began = perf_counter()
        yield
        self.seconds[name] = round(perf_counter() - began, 3)

    def note(self, text: str) -> None:
        """Say something that is not a phase."""


class ConsoleProgress(Progress):
    """Shows phases on stderr: a running clock on a terminal, else a line when one ends."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__()
        self._console = Console(stderr=True)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block and show it."""
        with self._clock(name), super().phase(name):
            yield
        self.note(f"{name:<12} {self.seconds[name]:6.1f} s")

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        off = not self._console.is_terminal
        with Bar(*columns, console=self._console, transient=True, disable=off) as bar:
            bar.add_task(name, total=None)
            yield
