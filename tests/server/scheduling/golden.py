"""Schedulers over the models that Triton's answers were recorded with, on real sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToJson

from fovea_engines.backends.registry import open_session
from fovea_engines.repository.config_pbtxt import config_message, parse_config, read_config
from fovea_engines.session import Array, Session
from fovea_server.models.config.config import fill_in_defaults
from fovea_server.observability.model_statistics import ModelStatistics
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.scheduling.make import make_scheduler
from fovea_server.tensors.messages import InferRequest, InferResponse, InputTensor
from fovea_server.tensors.wire import NAMES, encode_strings


class Gate:
    """A real session that begins no call before it may, or fails at each."""

    def __init__(self, session: Session) -> None:
        self.inputs, self.outputs = session.inputs, session.outputs
        self.max_batch, self.concurrency = session.max_batch, 1
        self.steady, self.offloads = session.steady, session.offloads
        self.open, self.entered = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._session = session

    def infer(self, feeds: Mapping[str, Array], *, alone: bool = True) -> dict[str, Array]:
        self.entered.set()
        assert self.open.wait(60), "nobody has opened the gate"
        if self.error is not None:
            raise self.error
        return self._session.infer(feeds, alone=alone)

    def close(self) -> None:
        self._session.close()


class Served:
    """A model with its scheduler, its statistics and what its configuration says."""

    def __init__(
        self,
        folder: Path,
        exits: ExitStack,
        *,
        backend: str = "onnxruntime",
        gated: bool = False,
        change: Callable[[Any], object] = lambda config: None,
        cache: ResponseCache | None = None,
        max_queue: int = 256,
        find: Callable[[str, int | None], Scheduler] | None = None,
    ) -> None:
        self.name = folder.name
        self.statistics = ModelStatistics()
        message = config_message(read_config(folder / "config.pbtxt"))
        change(message)
        config = replace(fill_in_defaults(parse_config(MessageToJson(message))), name=self.name)
        self.session: Any = None
        if config.ensemble_scheduling is None:
            self.session = exits.enter_context(
                open_session(
                    backend, folder / "1" / "model.onnx", max_batch=config.max_batch_size, threads=2
                )
            )
            if gated:
                self.session = self.gate = Gate(self.session)
        self.scheduler: Scheduler = make_scheduler(
            version=1,
            config=config,
            session=self.session,
            max_queue=max_queue,
            statistics=self.statistics,
            cache=cache,
            find=find or _nothing,
        )
        exits.callback(self.scheduler.close, 0)

    async def ask(self, **fields: Any) -> object:
        """Ask for the answer to a request of no interest; raises what it says."""
        return await self.infer(rows(0), rows(0), **fields)

    def request(self, *arrays: Array, names: str = "INPUT{}", **fields: Any) -> InferRequest:
        """A request with these inputs, named by their number."""
        inputs = [wire(names.format(at), array) for at, array in enumerate(arrays)]
        return InferRequest(self.name, None, inputs, **fields)

    async def infer(self, *arrays: Array, **fields: Any) -> InferResponse:
        """Ask for these inputs."""
        return await self.scheduler.infer(self.request(*arrays, **fields))


def wire(name: str, array: Array) -> InputTensor:
    """An input as it comes in binary."""
    data = encode_strings(array) if array.dtype == object else array.tobytes()
    return InputTensor(name, NAMES[array.dtype], array.shape, memoryview(data))


def rows(first: int, count: int = 1) -> Array:
    """int32 [count, 16], every row other numbers."""
    return first + np.arange(16 * count, dtype=np.int32).reshape(count, 16)


def strings(*elements: bytes, shape: tuple[int, ...] | None = None) -> Array:
    """object, of `bytes`."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array if shape is None else array.reshape(shape)


def _nothing(name: str, version: int | None) -> Scheduler:
    raise AssertionError(f"no model should be asked for, and {name} was")
