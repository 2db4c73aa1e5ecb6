"""Keeps a mirror up to date in its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from fovea_preprocess.errors import FoveaError, ShuttingDown, Unavailable
from fovea_server.stores.mirror import Mirror

log = logging.getLogger(__name__)


class MirrorFollower:
    """Pulls a store in its own thread until the mirror has models.

    If `polls` is True, it then continues to pull every `every_s` seconds. If the store cannot be
    read, the models from the last pull stay.

    Attributes:
        mirror: local copy of the store.
        started: event that is set as soon as models can be served from the mirror.
        fault: last error; "" if the store can be read.
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
        """Return the directory of the local copy."""
        return self.mirror.root

    @property
    def refused(self) -> Mapping[str, str]:
        """Return the models of the store that were rejected, with the reasons."""
        return self.mirror.refused

    @property
    def refused_new(self) -> Mapping[str, str]:
        """Return the rejected models that have no copy from an earlier pull, with the reasons."""
        return self.mirror.refused_new

    def connect(self) -> None:
        """Check that the store can be read.

        If the mirror has models from an earlier pull, do nothing.
        """
        if not self.mirror.has_models:
            self.mirror.check()

    def start(self) -> None:
        """Start the thread that pulls."""
        # The thread is a daemon, so that a store that does not respond does not delay the exit of
        # the server.
        threading.Thread(target=self._run, name="pull", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.pull()
            if self.started.is_set() and not self._polls:
                return
            self._stop.wait(self._every_s)

    def pull(self) -> None:
        """Pull now. If an error occurs, log it."""
        try:
            self.mirror.pull(self._stop, self._on_busy)
            if not self._polls and self.mirror.refused and not self.mirror.has_models:
                raise Unavailable(f"no model of {self.mirror.address} could be pulled")
        except ShuttingDown:
            return
        except (FoveaError, OSError) as error:
            self._report_failure(error)
        except Exception as error:  # a failed pull must not prevent the next pull
            log.exception("the changes in %s could not be pulled", self.mirror.address)
            self._report_failure(error)
        else:
            if self.fault:
                log.info("%s can be read again", self.mirror.address)
            self.fault = ""
            if not self.started.is_set():
                self._missing = frozenset(self.mirror.refused_new)
                self.started.set()

    def _on_busy(self) -> None:
        """Serve models from an earlier pull while another server pulls to the same directory."""
        if self._polls and self.mirror.has_models:
            self.started.set()

    def _report_failure(self, error: Exception) -> None:
        """Log a failure once. If there are models from an earlier pull, serve them."""
        kept = self.mirror.has_models
        if not self.fault:
            again = f"; the server tries again every {self._every_s:g} s"
            log.warning(
                "%s: serving the models of the last pull%s" if kept else "%s%s",
                error,
                again if self._polls or not kept else "; --model-control-mode=poll tries again",
            )
        self.fault = str(error)
        if kept:
            self.started.set()

    @property
    def unserved(self) -> list[str]:
        """Return the models that the first pull rejected and are still rejected, with reasons."""
        return [f"{n}: {why}" for n, why in self.mirror.refused.items() if n in self._missing]

    def stop(self) -> None:
        """End the pulling thread, and release all threads that wait for `started`."""
        self._stop.set()
        self.started.set()
