"""Images that the data plane cuts, in the queue of a model."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.server.scheduling.served import SCENES, ServedImages

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import (
    DeadlineExceeded,
    InvalidImage,
    InvalidOption,
    QueueFull,
    ShuttingDown,
)
from fovea_preprocess.image import decode_image
from fovea_server.dataplane.tiles import Tiles
from fovea_server.models.opening import image_limits
from fovea_server.observability.model_statistics import FailureReason
from fovea_server.settings import Settings
from fovea_server.tensors.messages import ImageResult
from fovea_server.traffic.triton_trace import TimedRequest

FOUR = PredictOptions(tile="2x2")
PARTS = 5
"""The tiles of an image, and the whole of it."""


class Cutting:
    """Asks for tiles of images."""

    def __init__(self, served: ServedImages) -> None:
        self.served = served
        tiles = Tiles(image_limits(Settings()))
        self._cut = tiles.cut_of("digits", served.engine, FOUR)

    async def ask(self, *images: bytes, **fields: Any) -> list[Any]:
        return await self.served.predict(*images, options=FOUR, cut=self._cut, **fields)


@pytest.fixture
def gated(serve_images: Callable[..., ServedImages]) -> Cutting:
    return Cutting(serve_images("simple", gated=True))


def test_tiles_are_one_request_and_each_is_an_inference(
    serve_images: Callable[..., ServedImages],
) -> None:
    served = serve_images("simple")
    expected = served.engine.detect(decode_image(SCENES[0]).pixels, FOUR)
    written: list[ImageResult] = []
    kept: list[TimedRequest] = []
    trace = TimedRequest(1, "digits", 1, "", kept.append)

    def encode(result: ImageResult) -> bytes:
        written.append(result)
        return b"written"

    began = time.monotonic_ns()
    answers = asyncio.run(Cutting(served).ask(*SCENES, b"no image", encode=encode, trace=trace))
    took = time.monotonic_ns() - began

    assert written == answers[:2]
    assert isinstance(answers[2], InvalidImage)
    assert [answer.encoded for answer in answers[:2]] == [b"written"] * 2
    assert np.allclose(answers[0].found.boxes, expected.boxes, atol=0.05)
    assert min(answers[0].times) > 0
    assert sum(map(sum, (answer.times for answer in answers[:2]))) <= took
    statistics = served.statistics
    assert statistics.inference_count == 2 * PARTS
    assert (statistics.success.count, statistics.fail.count) == (2, 1)
    assert statistics.failures == {FailureReason.OTHER: 1}
    [stamps] = [each["timestamps"] for each in trace.entries() if "timestamps" in each]
    assert len({each["name"] for each in stamps}) == len(stamps) == 7
    assert [each["ns"] for each in stamps] == sorted(each["ns"] for each in stamps)
    assert served.scheduler.gate.inside == served.scheduler.accepted == 0


@pytest.mark.parametrize("by", ["--max-queue", "max_queue_size"])
def test_more_tiles_than_a_queue_takes_are_refused(
    serve_images: Callable[..., ServedImages], by: str
) -> None:
    def change(config: Any) -> None:
        if by == "max_queue_size":
            config.dynamic_batching.default_queue_policy.max_queue_size = PARTS - 1

    limit = {} if by == "max_queue_size" else {"max_queue": PARTS - 1}
    few = Cutting(serve_images("simple", change=change, **limit))

    first, second = asyncio.run(few.ask(SCENES[0], b"no image"))

    assert isinstance(first, InvalidOption)
    assert "into 5 tiles, and the limit is 4" in str(first)
    assert "larger tiles" in str(first)
    assert isinstance(second, InvalidImage)
    assert few.served.statistics.failures == {FailureReason.OTHER: 2}


def test_the_wait_of_all_tiles_ends_when_that_of_the_request_does(
    serve_images: Callable[..., ServedImages],
) -> None:
    """The second image is cut when the first is answered, and has what is left of the time."""

    def change(config: Any) -> None:
        config.dynamic_batching.default_queue_policy.default_timeout_microseconds = 300_000

    late = Cutting(serve_images("simple", gated=True, change=change))
    statistics = late.served.statistics

    async def ask() -> list[Any]:
        asked = asyncio.create_task(late.ask(*SCENES))
        while late.served.scheduler.accepted != PARTS:
            await asyncio.sleep(0.01)
        while late.served.scheduler.accepted > PARTS - 1:
            await asyncio.sleep(0.01)
        late.served.gate.open.set()
        return await asked

    answers = asyncio.run(ask())

    assert [type(answer) for answer in answers] == [DeadlineExceeded] * 2
    assert statistics.failures == {FailureReason.REJECTED: 2}


def test_few_requests_are_cut_at_a_time_and_who_gives_up_makes_room(gated: Cutting) -> None:
    async def ask() -> None:
        tasks = [asyncio.create_task(gated.ask(SCENES[n % 2])) for n in range(8)]
        while gated.served.scheduler.accepted < 8 * PARTS:
            await asyncio.sleep(0.01)
        with pytest.raises(QueueFull, match="8 requests"):
            await gated.ask(SCENES[0])
        assert gated.served.statistics.failures == {FailureReason.REJECTED: 1}
        tasks[7].cancel()
        await asyncio.wait(tasks[7:])
        assert tasks[7].cancelled()
        assert gated.served.statistics.failures[FailureReason.CANCELED] == 1
        tasks[7] = asyncio.create_task(gated.ask(SCENES[1]))
        await asyncio.sleep(0)
        gated.served.gate.open.set()
        for [answer] in await asyncio.gather(*tasks):
            assert isinstance(answer, ImageResult)

    asyncio.run(ask())


def test_a_request_that_has_begun_is_answered_whole_before_the_model_is_gone(
    gated: Cutting,
) -> None:
    scheduler = gated.served.scheduler

    async def ask() -> list[Any]:
        begun = asyncio.create_task(gated.ask(*SCENES))
        while scheduler.accepted < PARTS:
            await asyncio.sleep(0.01)
        closing = asyncio.create_task(asyncio.to_thread(scheduler.close, 60))
        while True:
            try:
                await asyncio.wait_for(gated.served.predict(SCENES[0]), 0.01)
            except ShuttingDown:
                break
            except TimeoutError:
                continue
        gated.served.gate.open.set()
        answers = await begun
        await closing
        return answers

    assert [type(answer) for answer in asyncio.run(ask())] == [ImageResult] * 2
