"""One place that hears of every request once it is answered, whatever carried it."""

from __future__ import annotations

import time
from collections.abc import Container

from fovea_preprocess.errors import FoveaError
from fovea_server.logs import SERVER_LOG
from fovea_server.statistics.histogram import Durations
from fovea_server.traffic.access_log import AccessLog
from fovea_server.traffic.refusals import Refusals


class Traffic:
    """Logs requests, measures them by model, and warns of those that are refused.

    It belongs to the event loop.

    Args:
        models: names that become labels; a client's other names count as "".
        log_access: log every request.

    Attributes:
        durations: of the requests that asked a model to infer.
        access_log: of every request; None where that is switched off.
    """

    def __init__(self, models: Container[str], *, log_access: bool) -> None:
        self._models = models
        self._refusals = Refusals()
        self.durations = Durations(models)
        self.access_log = AccessLog(SERVER_LOG) if log_access else None

    def inferred(
        self, model: str, status: int | str, began: float, error: FoveaError | None
    ) -> None:
        """Measure a request that asked a model to infer.

        Args:
            model: as the client named it.
            status: HTTP status, or name of the gRPC status.
            began: by `time.monotonic`.
            error: the answer, where it was one.
        """
        self.durations.observe(model, status, time.monotonic() - began)
        if error is not None:
            self._refusals.add(model if model in self._models else "", error)

    def close(self) -> None:
        """Log what is still to be logged."""
        self._refusals.close()
