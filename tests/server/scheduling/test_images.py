"""Images through the queue of a model, on a real engine."""

import asyncio
import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.server.scheduling.served import SCENES, ServedImages, give_up_some

from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import (
    InferenceFailed,
    InvalidImage,
    InvalidRequest,
    ModelNotReady,
    QueueFull,
)
from fovea_preprocess.image import DecodedImage, decode_image
from fovea_server.dataplane.tiles import Tiles
from fovea_server.models.opening import image_limits
from fovea_server.observability.model_statistics import FailureReason
from fovea_server.scheduling.cache import ResponseCache
from fovea_server.settings import Settings
from fovea_server.tensors.messages import ImageResult, InferRequest, InputTensor
from fovea_server.traffic.triton_trace import TimedRequest

pytestmark = pytest.mark.slow

ServeImages = Callable[..., ServedImages]


def found(answer: object) -> tuple[Any, ...]:
    """Return classes, boxes and scores in a form that can be compared."""
    assert isinstance(answer, ImageResult)
    assert answer.found is not None
    boxes, scores = answer.found.boxes, answer.found.scores
    return tuple(answer.found.class_ids), boxes.tobytes(), scores.tobytes()


def test_answers_under_load_are_those_of_one_image_at_a_time(serve_images: ServeImages) -> None:
    served = serve_images("simple")
    expected = [served.engine.detect(decode_image(scene).pixels) for scene in SCENES]

    async def ask() -> list[Any]:
        return await asyncio.gather(*[served.predict(SCENES[n % 2]) for n in range(32)])

    for n, [answer] in enumerate(asyncio.run(ask())):
        assert np.array_equal(answer.found.class_ids, expected[n % 2].class_ids)
        assert np.allclose(answer.found.boxes, expected[n % 2].boxes, atol=0.05)
        assert np.allclose(answer.found.scores, expected[n % 2].scores, atol=1e-4)
        assert answer.times.decode > 0
        assert answer.times.infer > 0
    assert served.scheduler.gate.inside == served.scheduler.pending == 0
    statistics = served.statistics
    assert statistics.inference_count == statistics.execution_count == 32
    spans = (statistics.compute_input, statistics.compute_infer, statistics.compute_output)
    assert all(span.count == 32 and span.ns > 0 for span in (statistics.queue, *spans))
    assert statistics.success.ns >= sum(span.ns for span in spans)


def test_pixels_are_answered_as_the_file_that_they_were_decoded_from(
    serve_images: ServeImages,
) -> None:
    cache = ResponseCache(1 << 20)
    served = serve_images("simple_cache", cache=cache)
    image = decode_image(SCENES[0])
    turned = DecodedImage(image.pixels.transpose(1, 0, 2), 1)

    async def ask() -> list[Any]:
        images = SCENES[0], image, image, turned
        return [(await served.predict(each))[0] for each in images]

    file, pixels, again, other = asyncio.run(ask())
    assert found(file) == found(pixels) == found(again) != found(other)
    # The cache tells a file from its pixels, and pixels of another shape.
    assert (cache.statistics.hits, len(cache)) == (1, 3)
    tiled = PredictOptions(tile="2x2")
    cut = Tiles(image_limits(Settings())).cut_of("simple_cache", served.engine, tiled)
    of_file, of_pixels, kept = (
        asyncio.run(served.predict(each, options=tiled, cut=cut))[0]
        for each in (SCENES[0], image, image)
    )
    assert found(of_file) == found(of_pixels) == found(kept)
    # The image is kept, and not its tiles.
    assert (cache.statistics.hits, len(cache)) == (2, 5)


def test_images_of_all_shapes_share_the_queue_of_an_engine_of_several_sizes(
    demo_rect: Path, serve_images: ServeImages
) -> None:
    served = serve_images("simple", version=demo_rect / "digits" / "1")
    pixels = np.tile(decode_image(SCENES[0]).pixels, (2, 2, 1))
    shapes = [(300, 300), (225, 400), (400, 300), (40, 400), (225, 400), (300, 301)]
    images = []
    for height, width in shapes:
        file = io.BytesIO()
        Image.fromarray(pixels[:height, :width]).save(file, "PNG")
        images.append(file.getvalue())
    expected = [served.engine.detect(decode_image(image).pixels) for image in images]

    async def ask() -> list[Any]:
        return await asyncio.gather(*[served.predict(images[n % 6]) for n in range(36)])

    for n, [answer] in enumerate(asyncio.run(ask())):
        assert np.array_equal(answer.found.class_ids, expected[n % 6].class_ids)
        assert np.allclose(answer.found.boxes, expected[n % 6].boxes, atol=0.05)
    assert sum(map(len, expected))


def test_tensors_of_other_sizes_than_an_engine_of_several_has_are_refused(
    demo_rect: Path, serve_images: ServeImages
) -> None:
    served = serve_images("simple", version=demo_rect / "digits" / "1")
    for sent in ((32, 32), (96, 320)):
        asyncio.run(served.scheduler.infer(tensor_request(served, sent)))
    for size in ((33, 47), (0, 0), (32, 0), (16, 16), (352, 320), (320, 1600)):
        with pytest.raises(InvalidRequest) as refused:
            asyncio.run(served.scheduler.infer(tensor_request(served, size)))
        assert str(refused.value).endswith(
            "Its height and width must be multiples of 32, up to [3,320,320], got "
            f"[1,3,{size[0]},{size[1]}]"
        )


def tensor_request(served: ServedImages, size: tuple[int, int]) -> InferRequest:
    """Return a request for the tensors of a grey image, float32 [1, 3, height, width]."""
    pixels = np.full((1, 3, *size), 0.5, np.float32)
    name = served.engine.card.inputs[0].name
    image = InputTensor(name, "FP32", pixels.shape, memoryview(pixels.tobytes()))
    return InferRequest(served.engine.card.name, None, [image], [])


def test_an_answer_is_written_where_it_is_computed(serve_images: ServeImages) -> None:
    served = serve_images("simple")
    threads = []

    def encode(result: ImageResult) -> bytes:
        threads.append(threading.current_thread().name)
        return b"%dx%d" % (result.width, result.height)

    [answer] = asyncio.run(served.predict(SCENES[0], encode=encode))

    assert isinstance(answer, ImageResult)
    assert answer.encoded == b"%dx%d" % (answer.width, answer.height)
    assert threads == ["simple-infer"]


def test_a_bad_image_fails_alone(serve_images: ServeImages) -> None:
    served = serve_images("simple")

    good, bad, also_good = asyncio.run(served.predict(SCENES[0], b"no image", SCENES[1]))

    assert found(good) != found(also_good)
    assert isinstance(bad, InvalidImage)
    assert served.statistics.failures == {FailureReason.OTHER: 1}
    assert served.statistics.execution_count == 2


def test_requests_are_accepted_whole_or_not(serve_images: ServeImages) -> None:
    served = serve_images("simple", gated=True, max_queue=8)

    async def ask() -> list[Any]:
        first = asyncio.create_task(served.predict(*SCENES * 3))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="3 images"):
            await served.predict(*SCENES, SCENES[0])
        with pytest.raises(InvalidRequest, match="9 images"):
            await served.predict(*[SCENES[0]] * 9)
        second = asyncio.create_task(served.predict(*SCENES))
        await asyncio.sleep(0)
        served.gate.open.set()
        return [*await first, *await second]

    assert len({found(answer) for answer in asyncio.run(ask())}) == 2
    assert served.statistics.failures == {FailureReason.REJECTED: 12}


def test_giving_up_some_changes_no_other_answer(serve_images: ServeImages) -> None:
    served = serve_images("simple")

    both = asyncio.run(give_up_some(served))

    assert [len({found(answer) for answer in answers}) for answers in both] == [1, 1]
    assert served.scheduler.gate.inside == served.scheduler.pending == 0


def test_giving_up_at_the_engine_does_not_wait_for_it(serve_images: ServeImages) -> None:
    """An image is the server's own memory: nobody has to keep it for the engine."""
    served = serve_images("simple", gated=True)

    async def ask() -> None:
        task = asyncio.create_task(served.predict(SCENES[0]))
        await asyncio.to_thread(served.gate.entered.wait)
        task.cancel()
        await asyncio.wait([task], timeout=60)
        assert task.cancelled()
        served.gate.open.set()
        assert found((await served.predict(SCENES[0]))[0])

    asyncio.run(ask())

    assert served.statistics.failures == {FailureReason.CANCELED: 1}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("place", ["engine", "head"])
def test_a_thread_that_dies_fails_everyone_who_waits(
    serve_images: ServeImages, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    served = serve_images("simple")

    def deadly(*arguments: object, **named: object) -> Any:
        raise KeyboardInterrupt

    if place == "engine":
        monkeypatch.setattr(served.engine.session, "infer", deadly)
    else:
        monkeypatch.setattr(type(served.engine.head), "decode", deadly)

    async def ask() -> list[Any]:
        tasks = [served.predict(SCENES[0]) for _ in range(12)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    for answer in asyncio.run(ask()):
        error = answer[0] if isinstance(answer, list) else answer
        assert isinstance(error, ModelNotReady)
        assert "thread" in str(error)
    with pytest.raises(ModelNotReady):
        asyncio.run(served.predict(SCENES[0]))
    assert served.scheduler.failure


def test_an_engine_that_fails_is_counted_as_such(
    serve_images: ServeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve_images("simple")

    def broken(feeds: object, *, alone: bool = True) -> Any:
        raise InferenceFailed("the device said no")

    with monkeypatch.context() as patch:
        patch.setattr(served.engine.session, "infer", broken)
        [answer] = asyncio.run(served.predict(SCENES[0]))
    assert isinstance(answer, InferenceFailed)
    assert found(asyncio.run(served.predict(SCENES[0]))[0])
    assert served.statistics.failures == {FailureReason.BACKEND: 1}


def test_the_same_image_is_computed_once(serve_images: ServeImages) -> None:
    cache = ResponseCache(1 << 20)
    served = serve_images("simple_cache", cache=cache)
    other = PredictOptions(conf=0.9)

    def encode(result: ImageResult) -> bytes:
        return b"%d" % result.width

    first, twice = asyncio.run(served.predict(SCENES[0], SCENES[1]))
    both = asyncio.run(served.predict(SCENES[1], b"no image", SCENES[0], encode=encode))
    asyncio.run(served.predict(SCENES[0], options=other))
    asyncio.run(served.predict(SCENES[0], keep_pixels=True))

    assert (found(both[2]), found(both[0])) == (found(first), found(twice))
    assert [answer.encoded for answer in both if isinstance(answer, ImageResult)] == [
        b"%d" % answer.width for answer in (twice, first) if isinstance(answer, ImageResult)
    ]
    assert isinstance(both[1], InvalidImage)
    assert served.statistics.cache_hit.count == 2
    assert served.statistics.execution_count == 4
    assert len(cache) == 3
    assert cache.used > 3 * 512


def test_a_trace_has_the_times_of_an_image(serve_images: ServeImages) -> None:
    served = serve_images("simple")
    trace = TimedRequest(1, "simple", 1, "", lambda trace: None)

    asyncio.run(served.predict(SCENES[0], trace=trace))

    [_, stamps] = trace.entries()
    names = [stamp["name"] for stamp in stamps["timestamps"]]
    assert names == [
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
    ]
    moments = [stamp["ns"] for stamp in stamps["timestamps"]]
    assert moments[1:] == sorted(moments[1:])


def test_what_was_not_computed_says_nothing_about_the_speed(serve_images: ServeImages) -> None:
    served = serve_images("simple")
    threads: list[str] = []
    real = served.engine.session.infer

    def slow(feeds: Any, *, alone: bool = True) -> Any:
        threads.append(threading.current_thread().name)
        time.sleep(0.005)
        return real(feeds, alone=alone)

    served.engine.session.infer = slow
    small = io.BytesIO()
    Image.new("RGB", (32, 32)).save(small, "JPEG")

    async def ask() -> None:
        for _ in range(20):
            await served.predict(b"no image")
            await served.predict(small.getvalue())

    asyncio.run(ask())

    assert set(threads) == {"simple-infer"}


def test_a_large_file_is_no_small_image(serve_images: ServeImages) -> None:
    """Its pixels are few, and all the rest of it has to be read too."""
    served = serve_images("simple")
    threads: list[str] = []

    def encode(result: ImageResult) -> bytes:
        threads.append(threading.current_thread().name)
        return b""

    served.scheduler._images.inline._open = True  # type: ignore[attr-defined]
    small = io.BytesIO()
    Image.new("RGB", (32, 32)).save(small, "JPEG")
    plain, comment = small.getvalue(), b"\xff\xfe\xff\xff" + bytes(65_533)

    for file in (plain, plain[:2] + comment + plain[2:]):
        [answer] = asyncio.run(served.predict(file, encode=encode))
        assert isinstance(answer, ImageResult)

    assert threads == [threading.main_thread().name, "simple-infer"]


def test_more_images_than_a_policy_ever_takes_are_refused_for_good(
    serve_images: ServeImages,
) -> None:
    def change(config: Any) -> None:
        config.dynamic_batching.default_queue_policy.max_queue_size = 2

    served = serve_images("simple_prio", change=change)

    with pytest.raises(InvalidRequest, match="3 images"):
        asyncio.run(served.predict(*[SCENES[0]] * 3))
