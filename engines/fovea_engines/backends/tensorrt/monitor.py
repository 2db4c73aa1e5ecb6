"""Reports the phases of a TensorRT build, and cancels the build."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, TypeVar

from fovea_engines.progress import Progress

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Phase:
    name: str
    parent: str | None
    steps: int
    done: int = 0

    def __str__(self) -> str:
        # Steps are defined by TensorRT and take unequal times, so the text has a count instead of a
        # percentage.
        return f"{self.name} {self.done}/{self.steps}" if self.steps > 1 else self.name


class Phases:
    """Shows the phase of a build that started last.

    TensorRT reports phases from its own threads.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: dict[str, _Phase] = {}
        self._cancelled = False
        self._shown = True
        self._lock = Lock()

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """Start a phase, possibly as a part of another phase. Names of open phases are unique."""
        with self._lock:
            self._open[name] = _Phase(name, parent, steps)
            self._report()

    def step(self, name: str, step: int) -> bool:
        """Record that a step (counted from 0) is done; return False if the build should stop."""
        with self._lock:
            if (phase := self._open.get(name)) is not None:
                phase.done = step + 1
                self._report()
            return not (self._cancelled or self._progress.cancelled)

    def finish(self, name: str) -> None:
        """End a phase, complete or not."""
        with self._lock:
            self._open.pop(name, None)
            self._report()

    def cancel(self) -> None:
        """Stop the build after its current step."""
        with self._lock:
            self._cancelled = True
            self._report()

    def _report(self) -> None:
        if not self._shown:
            return
        # TensorRT interprets an exception in its monitor as a request to stop the build.
        try:
            self._progress.now(self._text())
        except Exception as error:  # noqa: BLE001  any error may happen; the build continues
            log.warning("the phases of the build can no longer be shown: %s", str(error))
            self._shown = False

    def _text(self) -> str:
        if not self._open:
            return ""
        if self._cancelled:
            return "stopping after this step"
        *_, last = self._open.values()
        # The root phase is the build itself, and the caller's phase already has this name.
        parent = self._open.get(last.parent or "")
        inner = parent is not None and parent.parent is not None
        return f"{parent}: {last}" if inner else str(last)


def progress_monitor(trt: Any, phases: Phases) -> Any:
    """Create an `IProgressMonitor` that reports phases. Keep it alive while the build runs."""

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
    """Run a build in another thread, so that Ctrl-C can stop it.

    TensorRT calls its monitor in the building thread, which never receives KeyboardInterrupt.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when the build has stopped.
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
        # `join` cannot be used: after an interrupt it considers the thread ended (CPython before
        # 3.13).
        return done.result()
    except KeyboardInterrupt:
        phases.cancel()
        # A build that has not started yet stops at its first step.
        if builder.is_alive():
            wait([done])
        raise
