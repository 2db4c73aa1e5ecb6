"""A warning while requests are refused: one a minute, however many they are."""

from __future__ import annotations

import asyncio
import logging

from fovea_preprocess.errors import FoveaError, ModelNotReady, QueueFull, ShuttingDown

log = logging.getLogger("fovea_server.refused")

_REFUSALS = (QueueFull, ModelNotReady, ShuttingDown)
_INTERVAL_S = 60.0


class Refusals:
    """Counts requests that the server could not take; of the event loop alone."""

    def __init__(self) -> None:
        # (model, reason) -> (how many, the latest message), since the last warning.
        self._counts: dict[tuple[str, str], tuple[int, str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, model: str, error: FoveaError) -> None:
        """Count an error if it is a refusal; the first one is logged at once.

        Args:
            model: that was asked for; "" where the request named none that is known.
            error: the answer.
        """
        if not isinstance(error, _REFUSALS):
            return
        key = (model, error.code)
        count, _ = self._counts.get(key, (0, ""))
        self._counts[key] = (count + 1, str(error))
        if self._timer is None:
            self._warn()

    def _warn(self) -> None:
        self._timer = None
        if self._counts:
            self._log()
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._warn)

    def _log(self) -> None:
        total = sum(count for count, _ in self._counts.values())
        parts = (
            f"{count} {reason}{f' of model {model!r}' if model else ''} ({message})"
            for (model, reason), (count, message) in self._counts.items()
        )
        self._counts, told = {}, "; ".join(parts)
        log.warning(
            "%d request%s refused in the last minute: %s",
            total,
            "" if total == 1 else "s",
            told,
            extra={"refused": total},
        )

    def close(self) -> None:
        """Log what was not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
        if self._counts:
            self._log()
