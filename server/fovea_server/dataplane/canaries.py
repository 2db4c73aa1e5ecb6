"""The running canaries of a server: at most one per model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fovea_server.rollout.canary import RunningCanary


class Canaries:
    """The running canaries, by model name. A canary receives a fraction of a model's requests.

    Use this class on the event loop only.
    """

    def __init__(self) -> None:
        self._running: dict[str, RunningCanary] = {}

    def get(self, name: str) -> RunningCanary | None:
        """Return the canary of a model, or None if none is running."""
        return self._running.get(name)

    def all(self) -> list[tuple[str, RunningCanary]]:
        """Return all canaries with the names of their models."""
        return list(self._running.items())

    def begin(self, name: str, canary: RunningCanary) -> None:
        """Start to send requests to a canary."""
        self._running[name] = canary

    def end(self, name: str) -> RunningCanary:
        """Stop sending requests to the canary of a model, and return the canary."""
        return self._running.pop(name)
