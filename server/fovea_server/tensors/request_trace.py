"""The timestamps of one request."""

from __future__ import annotations

import time
from typing import Any

from fovea_server.statistics.model import Spans


class RequestTrace:
    """Records the timestamps of a request, ns of the monotonic clock, from its construction."""

    def __init__(self, number: int, model: str, version: int, request_id: str) -> None:
        self.model = model
        self._number = number
        self._about = {"id": number, "model_name": model, "model_version": version}
        if request_id:
            self._about["request_id"] = request_id
        self._stamps: list[dict[str, Any]] = []
        self._mark("REQUEST_START", time.monotonic_ns())

    def computed(self, spans: Spans) -> None:
        """Record the times of the engine."""
        end = time.monotonic_ns()
        output = end - spans.compute_output
        infer = output - spans.compute_infer
        start = infer - spans.compute_input
        self._mark("QUEUE_START", start - spans.queue)
        self._mark("COMPUTE_START", start)
        self._mark("COMPUTE_INPUT_END", infer)
        self._mark("COMPUTE_OUTPUT_START", output)
        self._mark("COMPUTE_END", end)

    def entries(self) -> list[dict[str, Any]]:
        """Make the entries for a trace file, and record the end."""
        self._mark("REQUEST_END", time.monotonic_ns())
        return [self._about, {"id": self._number, "timestamps": self._stamps}]

    def _mark(self, name: str, ns: int) -> None:
        self._stamps.append({"name": name, "ns": ns})
