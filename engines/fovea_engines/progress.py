"""Phases of long work, as they are shown and as they are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """Times phases; shows them when it has a console: a spinner on a terminal, else lines.

    Attributes:
        seconds: by phase, in the order they ended.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._console = console

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; the name is shown and recorded. A block that raises is not recorded."""
        began = perf_counter()
        with self._spinner(name):
            yield
        self.seconds[name] = round(perf_counter() - began, 3)
        self._print(f"  {name:<12} {self.seconds[name]:6.1f} s")

    def note(self, text: str) -> None:
        """Say something that is not a phase."""
        self._print(f"  {text}")

    @contextmanager
    def _spinner(self, name: str) -> Iterator[None]:
        if self._console is None or not self._console.is_terminal:
            yield
            return
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Bar(*columns, console=self._console, transient=True) as bar:
            bar.add_task(name, total=None)
            yield

    def _print(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
