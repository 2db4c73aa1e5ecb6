"""TensorRT's own account of a build: which phases are under way, and a way to stop it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, TypeVar

from fovea_engines.progress import Progress

T = TypeVar("T")


@dataclass(slots=True)
class _Phase:
    name: str
    parent: str | None
    steps: int
    done: int = 0

    def __str__(self) -> str:
        # Steps are TensorRT's, and take unlike times: a count is told, a share would be a guess.
        return f"{self.name} {self.done}/{self.steps}" if self.steps > 1 else self.name


class Phases:
    """The phases of one build; TensorRT tells of them from threads of its own.

    Args:
        progress: is told what is under way: the phase that began last, and the one it is part of.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: dict[str, _Phase] = {}
        self._cancelled = False
        self._lock = Lock()

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """A phase begins.

        Args:
            name: of no other phase that is under way.
            parent: phase that it is a part of.
            steps: how many `step` will tell of.
        """
        with self._lock:
            self._open[name] = _Phase(name, parent, steps)
            self._tell()

    def step(self, name: str, step: int) -> bool:
        """A step of a phase is done, counted from 0; False where the build shall stop."""
        with self._lock:
            if (phase := self._open.get(name)) is not None:
                phase.done = step + 1
                self._tell()
            return not (self._cancelled or self._progress.cancelled)

    def finish(self, name: str) -> None:
        """A phase ends, done or not."""
        with self._lock:
            self._open.pop(name, None)
            self._tell()

    def cancel(self) -> None:
        """Let the build stop after the step that is under way."""
        with self._lock:
            self._cancelled = True
            self._tell()

    def _tell(self) -> None:
        self._progress.now(self._text())

    def _text(self) -> str:
        if not self._open:
            return ""
        if self._cancelled:
            return "stopping after this step"
        *_, last = self._open.values()
        # The root is the build itself, which the caller's own phase has named.
        parent = self._open.get(last.parent or "")
        inner = parent is not None and parent.parent is not None
        return f"{parent}: {last}" if inner else str(last)


def progress_monitor(trt: Any, phases: Phases) -> Any:
    """An `IProgressMonitor` that tells of phases; hold on to it while the build runs."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            phases.start(name, parent, steps)

        def step_complete(self, name: str, step: int) -> bool:
            return phases.step(name, step)

        def phase_finish(self, name: str) -> None:
            phases.finish(name)

    return Monitor()


def run_cancellable(work: Callable[[], T], phases: Phases) -> T:
    """Run a build so that Ctrl-C stops it.

    TensorRT calls its monitor in the thread that builds, and swallows what is raised there: so
    that thread is another one, and this one is free to be interrupted.

    Raises:
        KeyboardInterrupt: after the build has stopped.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001  raised again below
            done.set_exception(error)

    builder = Thread(target=run, name="tensorrt-build")
    try:
        builder.start()
        # Not by `join`: one that is interrupted takes the thread for ended (CPython before 3.13).
        return done.result()
    except KeyboardInterrupt:
        phases.cancel()
        # It may not have started yet; then it stops at its first step.
        if builder.is_alive():
            wait([done])
        raise
