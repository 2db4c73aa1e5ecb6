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
        # TensorRT defines the steps, and they have different durations. So the text has a count: a
        # percentage would suggest a duration.
        return f"{self.name} {self.done}/{self.steps}" if self.steps > 1 else self.name


class Phases:
    """Shows the latest phase of a TensorRT build.

    TensorRT calls the methods from its own threads.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: dict[str, _Phase] = {}
        self._cancelled = False
        self._shown = True
        self._lock = Lock()

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """Start a phase with a number of steps, as a part of the phase `parent` if it is not None.

        TensorRT gives each open phase a unique name.
        """
        with self._lock:
            self._open[name] = _Phase(name, parent, steps)
            self._report()

    def step(self, name: str, step: int) -> bool:
        """Record that a step is done, and return whether the build should continue.

        `step` counts from 0.
        """
        with self._lock:
            if (phase := self._open.get(name)) is not None:
                phase.done = step + 1
                self._report()
            return not (self._cancelled or self._progress.cancelled)

    def finish(self, name: str) -> None:
        """End a phase, even if some of its steps are not done."""
        with self._lock:
            self._open.pop(name, None)
            self._report()

    def cancel(self) -> None:
        """Request that the build stops after its current step."""
        with self._lock:
            self._cancelled = True
            self._report()

    def _report(self) -> None:
        if not self._shown:
            return
        # Catch all exceptions, because TensorRT stops the build if its monitor raises one.
        try:
            self._progress.now(self._text())
        except Exception as error:  # noqa: BLE001  any error may happen; the build continues
            log.warning("cannot show the progress of the build any more: %s", str(error))
            self._shown = False

    def _text(self) -> str:
        if not self._open:
            return ""
        if self._cancelled:
            return "stopping after this step"
        *_, last = self._open.values()
        # Do not show the root phase as a parent: it is the build itself, and the progress display
        # already shows the build as a phase.
        parent = self._open.get(last.parent or "")
        inner = parent is not None and parent.parent is not None
        return f"{parent}: {last}" if inner else str(last)


def progress_monitor(trt: Any, phases: Phases) -> Any:
    """Create an `IProgressMonitor` that passes a build's phases to `phases`.

    Keep a reference to it during the build, because TensorRT does not.
    """

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

    The main thread receives KeyboardInterrupt while it waits. The monitor then stops the build.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C. It is raised after the build has stopped.
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
        # Wait for the future and not with `Thread.join`: in CPython before 3.13, an interrupted
        # `join` marks the thread as ended.
        return done.result()
    except KeyboardInterrupt:
        phases.cancel()
        # If the build thread is alive but has not begun the build, the build stops at its first
        # step.
        if builder.is_alive():
            wait([done])
        raise
