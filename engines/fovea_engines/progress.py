"""Measures the phases of a build or another long task, and shows them on a console."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

T = TypeVar("T")

# Longest time in seconds without a line of output while a phase runs, if there is no terminal.
SILENCE_S = 5.0


class Progress:
    """Measures phases, and prints nothing.

    Attributes:
        seconds: name of each finished phase -> its duration in seconds, in the order in which the
            phases ended.
        cancelled: True if the work should stop; a TensorRT build stops at its next step.
    """

    cancelled = False

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the duration of the `with` block, and add it to the phase of this name.

        The duration of a block that raises is not added.
        """
        began = perf_counter()
        yield
        before = self.seconds.get(name, 0.0)
        self.seconds[name] = round(before + perf_counter() - began, 3)

    def each(self, things: Iterable[T], total: int) -> Iterator[T]:
        """Yield the things of an iterable. A subclass shows how many of `total` are done."""
        yield from things

    def now(self, text: str) -> None:
        """Report the current step of the phase. Any thread may call this method."""

    def note(self, text: str) -> None:
        """Report a remark that does not belong to the current phase."""


class ConsoleProgress(Progress):
    """Shows phases on stderr: with a running clock on a terminal, otherwise as lines of text."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__()
        self._console = Console(stderr=True)
        self._bar: Bar | None = None
        self._printed_at = perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the duration of the `with` block, and print it at the end."""
        before = self.seconds.get(name, 0.0)
        with self._clock(name), super().phase(name):
            yield
        self.note(f"{name:<12} {self.seconds[name] - before:6.1f} s")

    def each(self, things: Iterable[T], total: int) -> Iterator[T]:
        """Yield the things of an iterable, and show beside the clock how many are done."""
        for done, thing in enumerate(things, 1):
            yield thing
            self.now(f"{done}/{total}")

    def now(self, text: str) -> None:
        """Show a text beside the clock, in place of the previous text."""
        if (bar := self._bar) is None:
            return
        task = bar.tasks[-1]
        bar.update(task.id, now=text)
        if not self._console.is_terminal and perf_counter() - self._printed_at >= SILENCE_S:
            self.note(f"{task.description} {text}")

    def note(self, text: str) -> None:
        """Print one line."""
        self._printed_at = perf_counter()
        self._console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[now]}", markup=False),
            TimeElapsedColumn(),
        )
        off = not self._console.is_terminal
        with Bar(*columns, console=self._console, transient=True, disable=off) as self._bar:
            self._bar.add_task(name, total=None, now="")
            yield
        self._bar = None
