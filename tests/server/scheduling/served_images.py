"""A scheduler over the digits engine, on a real session, for images."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToJson
from tests.server.scheduling.golden import Gate

from fovea_engines.engine import Engine
from fovea_engines.repository.config_pbtxt import config_message, parse_config, read_config
from fovea_engines.repository.model_config import ModelConfig
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import FoveaError
from fovea_server.models.config.config import complete_config
from fovea_server.models.opening import images_of
from fovea_server.observability.model_statistics import ModelStatistics
from fovea_server.scheduling.base import Scheduler
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.scheduling.make import make_scheduler
from fovea_server.settings import Settings
from fovea_server.tensors.messages import ImageRequest, ImageResult, SentImage

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
            find=_nothing,
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


def _nothing(name: str, version: int | None) -> Scheduler:
    raise AssertionError(f"no model should be asked for, and {name} was")
