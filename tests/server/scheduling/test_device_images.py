"""Images for an engine on a device, which gets batches of what was decoded ahead of it."""

import asyncio
import io
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.engines.fake_device import fake_gpu
from tests.engines.host_kernel import HostDevice, engine_of, host_image, open_images
from tests.server.scheduling.served import SCENES, ServedImages, give_up_some

from fovea_engines.engine import Engine
from fovea_preprocess.errors import (
    DeadlineExceeded,
    DeviceLost,
    InferenceFailed,
    InvalidImage,
    ModelNotReady,
)
from fovea_preprocess.image import decode_image
from fovea_server.models.opening import warm_up_images
from fovea_server.scheduling import job
from fovea_server.settings import Settings
from fovea_server.tensors.messages import ImageResult

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenes() -> list[bytes]:
    """Two images, and one that is larger than a slot has room for."""
    large = io.BytesIO()
    with Image.open(io.BytesIO(SCENES[0])) as scene:
        scene.resize((2000, 2000 * scene.height // scene.width)).save(large, "JPEG")
    return [*SCENES, large.getvalue()]


@pytest.fixture
def device() -> Iterator[HostDevice]:
    with fake_gpu(kind=HostDevice) as device:
        yield device


@pytest.fixture
def on_device(digits: Path, tmp_path: Path, device: HostDevice) -> Iterator[Engine]:
    """An engine of TensorRT on the stand-ins for its runtime and its GPU."""
    with Engine.open(digits) as cpu:
        spec = cpu.card.preprocess
        image = host_image(spec, tmp_path)
        made = engine_of(digits / "model.onnx", device, rows=4)
        with Engine(cpu.card, open_images(made, image, spec, max_batch=4)) as engine:
            yield engine
    assert device.closed


@pytest.fixture
def served(on_device: Engine, shared: Path) -> Iterator[ServedImages]:
    with ExitStack() as exits:
        folder = shared / "data" / "triton" / "models" / "simple"
        settings = Settings(max_queue_delay_ms=20)
        yield ServedImages(on_device, folder, exits, settings=settings)


def answers(served: ServedImages, *images: bytes) -> list[Any]:
    async def ask() -> list[Any]:
        asked = [served.predict(image) for image in images]
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(ask())
    return [one if isinstance(one, BaseException) else one[0] for one in found]


def test_answers_are_those_of_the_cpu(
    served: ServedImages, device: HostDevice, digits: Path, scenes: list[bytes]
) -> None:
    with Engine.open(digits) as cpu:
        images = [decode_image(scene).pixels for scene in scenes]
        expected = [cpu.detect(pixels) for pixels in images]
    assert images[2].nbytes > 1920 * 1080 * 3
    device.trace.clear()

    for n, result in enumerate(answers(served, *[scenes[n % 3] for n in range(30)])):
        want = expected[n % 3]
        assert (result.height, result.width) == images[n % 3].shape[:2]
        assert result.found.class_ids.tolist() == want.class_ids.tolist()
        preprocess = served.engine.card.preprocess
        assert preprocess is not None
        scale = max(1, result.width / preprocess.width)
        assert np.allclose(result.found.boxes, want.boxes, atol=0.3 * scale)
        assert np.allclose(result.found.scores, want.scores, atol=0.02)
    steps = [operation for operation, _ in device.trace]
    assert 8 <= steps.count("kernel") == steps.count("execute") <= 30
    assert served.scheduler.gate.inside == served.scheduler.pending == 0


def test_the_times_of_an_image_are_no_more_than_it_took(served: ServedImages) -> None:
    large = io.BytesIO()
    Image.radial_gradient("L").resize((3000, 3000)).convert("RGB").save(large, "PNG")
    answers(served, SCENES[0])
    began = time.monotonic_ns()
    [answer] = answers(served, large.getvalue())
    assert sum(answer.times) <= time.monotonic_ns() - began


def test_the_host_does_not_letterbox(served: ServedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.engine, "preprocessor", object())

    [answer] = answers(served, SCENES[0])

    assert isinstance(answer, ImageResult)


def test_one_batch_that_fails_does_not_harm_the_next(
    served: ServedImages, device: HostDevice
) -> None:
    for operation in ("kernel", "copy_in", "execute"):
        device.fail(operation)
        assert isinstance(answers(served, SCENES[0])[0], InferenceFailed)
        assert isinstance(answers(served, SCENES[0])[0], ImageResult)


def test_images_of_a_batch_that_fails_are_run_alone(
    served: ServedImages, device: HostDevice
) -> None:
    assert isinstance(answers(served, SCENES[0])[0], ImageResult)

    def all_are_answered() -> bool:
        device.fail("execute")
        return all(isinstance(answer, ImageResult) for answer in answers(served, *SCENES * 2))

    # On a busy machine the batch that fails may have one image only, whose error it is then.
    assert any(all_are_answered() for _ in range(20))


def test_a_bad_image_fails_alone(served: ServedImages) -> None:
    good, bad, also_good = answers(served, SCENES[0], b"no image", SCENES[1])

    assert isinstance(good, ImageResult)
    assert isinstance(bad, InvalidImage)
    assert isinstance(also_good, ImageResult)


def test_giving_up_some_changes_no_other_answer(served: ServedImages) -> None:
    for answers in asyncio.run(give_up_some(served)):
        assert len({tuple(answer.found.class_ids) for answer in answers if answer.found}) == 1
    assert served.scheduler.gate.inside == served.scheduler.pending == 0


def test_the_way_of_images_is_warmed_up(on_device: Engine, device: HostDevice) -> None:
    device.trace.clear()
    warm_up_images(on_device)
    assert "kernel" in [operation for operation, _ in device.trace]


def test_a_device_that_crashed_takes_the_model_down_with_a_reason(
    served: ServedImages, device: HostDevice
) -> None:
    assert isinstance(answers(served, SCENES[0])[0], ImageResult)
    device.crash()
    [second] = answers(served, SCENES[0])
    assert isinstance(second, DeviceLost | ModelNotReady)
    assert "no longer responds" in str(second)
    [third] = answers(served, SCENES[0])
    assert isinstance(third, ModelNotReady)
    assert "restart" in str(third)


def test_who_is_rejected_while_an_image_is_decoded_gets_the_error(
    on_device: Engine, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(config: Any) -> None:
        policy = config.dynamic_batching.default_queue_policy
        policy.default_timeout_microseconds = 20_000

    decode = job.decode_image

    def slow(*arguments: Any) -> Any:
        time.sleep(0.2)
        return decode(*arguments)

    monkeypatch.setattr(job, "decode_image", slow)
    with ExitStack() as exits:
        folder = shared / "data" / "triton" / "models" / "simple_prio"
        served = ServedImages(on_device, folder, exits, change=change)

        both = asyncio.run(served.predict(*SCENES))
        time.sleep(0.3)

        assert [type(answer) for answer in both] == [DeadlineExceeded, DeadlineExceeded]
        assert served.scheduler.gate.inside == served.scheduler.pending == 0


class RowDevice:
    """A stand-in for a device without a letterbox: batches of rows, one at a time."""

    offloads, steady, concurrency, max_batch = True, False, 1, 4

    def __init__(self, engine: Engine) -> None:
        self._inside = engine.session
        self.inputs, self.outputs = engine.session.inputs, engine.session.outputs
        self.batches: list[int] = []

    def infer(self, feeds: dict[str, Any], *, alone: bool = True) -> dict[str, Any]:
        self.batches.append(len(next(iter(feeds.values()))))
        return self._inside.infer(feeds)

    def close(self) -> None:
        self._inside.close()


@pytest.mark.parametrize("most", [4, 3])
def test_rows_of_images_share_batches(
    digits: Path, shared: Path, serve_images: Callable[..., ServedImages], most: int
) -> None:
    expected = answers(serve_images("simple"), *SCENES)
    with ExitStack() as exits:
        engine = Engine.open(digits)
        engine.session = device = RowDevice(engine)
        folder = shared / "data" / "triton" / "models" / "simple"
        settings = Settings(max_queue_delay_ms=50)
        served = ServedImages(engine, folder, exits, settings=settings, max_batch_size=most)

        found = answers(served, *SCENES * 8)

    for n, answer in enumerate(found):
        want = expected[n % 2].found
        assert np.allclose(answer.found.boxes, want.boxes, atol=0.05)
    assert sum(device.batches) == 16
    assert max(device.batches) == most
