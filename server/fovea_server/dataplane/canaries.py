"""The canaries of a server: at most one of each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fovea_server.rollout.canary import RunningCanary


class Canaries:
    """The canaries that take a share of the requests, by the name of their model.

    It belongs to the event loop.
    """

    def __init__(self) -> None:
        self._running: dict[str, RunningCanary] = {}

    def get(self, name: str) -> RunningCanary | None:
        """Return the canary of a model; None where there is none."""
        return self._running.get(name)

    def all(self) -> list[tuple[str, RunningCanary]]:
        """List them with the names of their models."""
        return list(self._running.items())

    def begin(self, name: str, canary: RunningCanary) -> None:
        """Give requests to a canary from now on."""
        self._running[name] = canary

    def end(self, name: str) -> RunningCanary:
        """Give no more requests to the canary of a model, and return it."""
        return self._running.pop(name)
