"""One request, one execution: the walking skeleton of scheduling."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from fovea_engines.backends.base import Array, Session
from fovea_preprocess.errors import InvalidRequest
from fovea_server.statistics import ModelStatistics, Spans
from fovea_server.v2.datatypes import NUMPY
from fovea_server.v2.messages import InferRequest, InferResponse, InputTensor, OutputTensor
from fovea_server.v2.signature import Signature


class DirectScheduler:
    """Runs each request by itself in a thread."""

    def __init__(
        self,
        name: str,
        version: int,
        signature: Signature,
        session: Session,
        statistics: ModelStatistics,
    ) -> None:
        self.failure: str | None = None
        self.pending = 0
        self.inflight = 0
        self._name, self._version = name, version
        self._signature = signature
        self._session = session
        self._statistics = statistics

    async def infer(self, request: InferRequest) -> InferResponse:
        """See `Scheduler`."""
        started = time.monotonic_ns()
        feeds = {tensor.name: _array(tensor) for tensor in request.inputs}
        found = await asyncio.to_thread(self._session.infer, feeds)
        spent = time.monotonic_ns() - started
        self._statistics.executed(1, Spans(compute_infer=spent))
        self._statistics.succeeded(1, spent, Spans(compute_infer=spent))
        asked = {output.name for output in request.outputs}
        return InferResponse(
            self._name,
            str(self._version),
            [
                OutputTensor(tensor.name, tensor.datatype, found[tensor.name])
                for tensor in self._signature.outputs
                if not asked or tensor.name in asked
            ],
            request.id,
        )

    def close(self, timeout_s: float) -> None:
        """See `Scheduler`."""


def _array(tensor: InputTensor) -> Array:
    if tensor.datatype not in NUMPY:
        raise InvalidRequest(f"unknown datatype {tensor.datatype}")
    if isinstance(tensor.data, memoryview):
        flat = np.frombuffer(tensor.data, NUMPY[tensor.datatype])
    else:
        flat = tensor.data
    return flat.reshape(tensor.shape)
