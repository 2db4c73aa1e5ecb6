"""Keeps a mirror up to date, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from fovea_preprocess.errors import FoveaError, ShuttingDown, Unavailable
from fovea_server.stores.mirror import Mirror

log = logging.getLogger(__name__)


class MirrorFollower:
    """Pulls a store until there is something to serve; with `polls`, also every `every_s` after.

    While the store cannot be read, what was pulled before is kept.

    Attributes:
        started: set once the mirror can be served from.
    """

    def __init__(self, mirror: Mirror, *, every_s: float, polls: bool) -> None:
        self.mirror = mirror
        self.started = threading.Event()
        self.fault = ""
        self._every_s = every_s
        self._polls = polls
        self._stop = threading.Event()
        self._missing: frozenset[str] = frozenset()

    @property
    def folder(self) -> Path:
        """The folder of the copy."""
        return self.mirror.root

    @property
    def refused(self) -> Mapping[str, str]:
        """Models that could not be taken over, with reasons."""
        return self.mirror.refused

    @property
    def refused_new(self) -> Mapping[str, str]:
        """The refused models that have no earlier content either, with reasons."""
        return self.mirror.refused_new

    def connect(self) -> None:
        """Look whether the store can be read, where nothing was pulled from it before."""
        if not self.mirror.has_models:
            self.mirror.check()

    def start(self) -> None:
        """Begin to pull, and return at once."""
        # A daemon: the server's end does not wait for a store that does not answer.
        threading.Thread(target=self._run, name="pull", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.pull()
            if self.started.is_set() and not self._polls:
                return
            self._stop.wait(self._every_s)

    def pull(self) -> None:
        """Pull now; faults are logged."""
        try:
            self.mirror.pull(self._stop, self._on_busy)
            if not self._polls and self.mirror.refused and not self.mirror.has_models:
                raise Unavailable(f"no model of {self.mirror.address} could be pulled")
        except ShuttingDown:
            return
        except (FoveaError, OSError) as error:
            self._report_failure(error)
        except Exception as error:  # one failed pull must not prevent the next
            log.exception("%s could not be followed", self.mirror.address)
            self._report_failure(error)
        else:
            if self.fault:
                log.info("%s can be read again", self.mirror.address)
            self.fault = ""
            if not self.started.is_set():
                self._missing = frozenset(self.mirror.refused_new)
                self.started.set()

    def _on_busy(self) -> None:
        """Serve what was pulled before: another server may pull much that is not served here."""
        if self._polls and self.mirror.has_models:
            self.started.set()

    def _report_failure(self, error: Exception) -> None:
        """Warn once of a fault, and serve what was pulled before."""
        kept = self.mirror.has_models
        if not self.fault:
            again = f"; it is tried again every {self._every_s:g} s"
            log.warning(
                "%s: what was pulled before is served%s" if kept else "%s%s",
                error,
                again if self._polls or not kept else "; --model-control-mode=poll tries again",
            )
        self.fault = str(error)
        if kept:
            self.started.set()

    @property
    def unserved(self) -> list[str]:
        """List the models that the first pull refused and that are refused still, with reasons."""
        return [f"{n}: {why}" for n, why in self.mirror.refused.items() if n in self._missing]

    def stop(self) -> None:
        """End what is under way, and release those who wait for it."""
        self._stop.set()
        self.started.set()
