"""Schedulers over the models that Triton's answers were recorded with, on real sessions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToJson

from fovea_engines.backends.registry import open_session
from fovea_engines.engine import Engine
from fovea_engines.repository.config_pbtxt import config_message, parse_config, read_config
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import Array, Session
from fovea_preprocess.errors import FoveaError
from fovea_server.models.config.config import complete_config, fill_in_defaults
from fovea_server.models.opening import images_of
from fovea_server.observability.model_statistics import ModelStatistics
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.scheduling.make import make_scheduler
from fovea_server.settings import Settings
from fovea_server.tensors.messages import (
    ImageRequest,
    ImageResult,
    InferRequest,
    InferResponse,
    InputTensor,
    SentImage,
)
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
            find=find or ask_nobody,
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


def ask_nobody(name: str, version: int | None) -> Scheduler:
    raise AssertionError(f"no model should be asked for, and {name} was")


# A scheduler over the digits engine, on a real session, for images.


DEMO = Path(__file__).resolve().parents[3] / "server" / "fovea_server" / "demo"
SCENES = [(DEMO / f"scene-{n}.jpg").read_bytes() for n in (1, 2)]


class ServedImages:
    """An engine of a version folder, with the queue that the configuration of a model asks for."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        exits: ExitStack,
        *,
        settings: Settings | None = None,
        max_batch_size: int | None = None,
        gated: bool = False,
        change: Callable[[Any], object] = lambda config: None,
        cache: ResponseCache | None = None,
        max_queue: int = 256,
    ) -> None:
        self.engine = exits.enter_context(engine)
        self.statistics = ModelStatistics()
        message = config_message(read_config(folder / "config.pbtxt"))
        change(message)
        asked = parse_config(MessageToJson(message))
        if gated:
            self.gate = Gate(engine.session)
            engine.session = self.gate
        config = replace(
            complete_config(
                ModelConfig(name=folder.name, max_batch_size=max_batch_size or engine.rows), engine
            ),
            dynamic_batching=asked.dynamic_batching,
            response_cache=asked.response_cache,
        )
        self.scheduler: Scheduler = make_scheduler(
            version=1,
            config=config,
            session=engine.session,
            images=images_of(engine, config, settings or Settings()),
            max_queue=max_queue,
            statistics=self.statistics,
            cache=cache,
            find=ask_nobody,
        )
        exits.callback(self.scheduler.close, 0)

    async def predict(self, *images: SentImage, **fields: Any) -> list[ImageResult | FoveaError]:
        """Ask for these images."""
        options = fields.pop("options", PredictOptions())
        return await self.scheduler.predict(ImageRequest(images, options, **fields))

    async def ask(self, **fields: Any) -> ImageResult:
        """Ask for an image of no interest; raises its error."""
        [answer] = await self.predict(SCENES[0], **fields)
        if isinstance(answer, FoveaError):
            raise answer
        return answer


async def give_up_some(served: ServedImages) -> list[list[ImageResult]]:
    """Ask for both scenes forty times, and give up every third; the other answers, by scene."""
    tasks = [asyncio.create_task(served.predict(SCENES[n % 2])) for n in range(40)]
    await asyncio.sleep(0.005)
    for task in tasks[::3]:
        task.cancel()
    found: list[list[ImageResult]] = [[], []]
    for n, outcome in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
        if not isinstance(outcome, asyncio.CancelledError):
            assert isinstance(outcome, list)
            assert isinstance(outcome[0], ImageResult)
            found[n % 2].append(outcome[0])
    return found


# Requests to a model whose gate is shut.


class Askers:
    """Requests to a model whose gate is shut, and in which order they were answered."""

    def __init__(self, served: Served | ServedImages) -> None:
        self.served = served
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[object]] = {}

    async def send(self, name: str, **fields: Any) -> None:
        self.tasks[name] = asyncio.create_task(self._ask(name, **fields))
        await asyncio.sleep(0)

    async def _ask(self, name: str, **fields: Any) -> object:
        response = await self.served.ask(id=name, **fields)
        self.order.append(name)
        return response

    async def answers(self) -> list[object]:
        self.served.gate.open.set()
        return await asyncio.gather(*self.tasks.values(), return_exceptions=True)
