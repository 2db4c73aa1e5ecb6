"""The three stages over a session that letterboxes on its device: on the stand-ins for a GPU."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.engines.fake_device import fake_gpu
from tests.engines.fake_images import engine_of, host_image, open_images
from tests.engines.host_kernel import HostDevice

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_preprocess.errors import DeviceLost, InferenceFailed, InvalidImage, ModelNotReady
from fovea_preprocess.image import ImageLimits, decode_image
from fovea_server.images.job import ImageJob
from fovea_server.images.pipeline import Pipeline
from fovea_server.models.opening import warm_up_images
from fovea_server.statistics.model import ModelStatistics

DEMO = Path(__file__).resolve().parents[3] / "server" / "fovea_server" / "demo"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp("images")
    plan = BuildPlan(DEMO / "digits.onnx", "digits", repository, "onnxruntime", max_batch=4)
    build(plan)
    return repository / "digits" / "1"


@pytest.fixture(scope="module")
def scenes() -> list[bytes]:
    """Two images, and one that is larger than a slot has room for."""
    scenes = [(DEMO / f"scene-{n}.jpg").read_bytes() for n in (1, 2)]
    large = io.BytesIO()
    with Image.open(io.BytesIO(scenes[0])) as scene:
        scene.resize((2000, 2000 * scene.height // scene.width)).save(large, "JPEG")
    return [*scenes, large.getvalue()]


@pytest.fixture
def device():
    with fake_gpu(kind=HostDevice) as device:
        yield device


@pytest.fixture
def engine(folder, tmp_path, device) -> Iterator[Engine]:
    with Engine.open(folder) as cpu:
        spec = cpu.card.preprocess
        image = host_image(spec, tmp_path)
        made = engine_of(folder / "model.onnx", device, rows=4)
        yield Engine(cpu.card, open_images(made, image, spec, max_batch=4))
    assert device.closed


@pytest.fixture
def pipeline(engine):
    made = Pipeline(
        engine,
        limits=ImageLimits(),
        max_queue=64,
        max_queue_delay_s=0.02,
        statistics=ModelStatistics(),
    )
    yield made
    made.close(10)


def job(data: bytes) -> ImageJob:
    return ImageJob(data, PredictOptions())


def test_answers_are_those_of_the_cpu(pipeline, device, folder, scenes):
    with Engine.open(folder) as cpu:
        images = [decode_image(scene).pixels for scene in scenes]
        expected = [cpu.detect(pixels) for pixels in images]
    assert images[2].nbytes > 1920 * 1080 * 3
    device.trace.clear()
    jobs = [job(scenes[n % 3]) for n in range(30)]
    pipeline.submit(jobs)
    for n, one in enumerate(jobs):
        result, want = one.future.result(60), expected[n % 3]
        assert (result.height, result.width) == images[n % 3].shape[:2]
        assert result.detections.class_ids.tolist() == want.class_ids.tolist()
        scale = result.width / pipeline.engine.card.preprocess.width
        assert np.allclose(result.detections.boxes, want.boxes, atol=0.3 * max(1, scale))
        assert np.allclose(result.detections.scores, want.scores, atol=0.02)
        assert one.image is None
    steps = [operation for operation, _ in device.trace]
    assert 8 <= steps.count("kernel") == steps.count("execute") <= 30
    assert pipeline.admission.inside == 0


def test_the_host_does_not_letterbox(pipeline, engine, scenes, monkeypatch):
    monkeypatch.setattr(engine, "preprocessor", object())
    one = job(scenes[0])
    pipeline.submit([one])
    assert len(one.future.result(30).detections)


def test_one_batch_that_fails_does_not_harm_the_next(pipeline, device, scenes):
    for operation in ("kernel", "copy_in", "execute"):
        device.fail(operation)
        bad = job(scenes[0])
        pipeline.submit([bad])
        with pytest.raises(InferenceFailed):
            bad.future.result(30)
        assert bad.image is None
        good = job(scenes[0])
        pipeline.submit([good])
        assert len(good.future.result(30).detections)


def test_a_bad_image_fails_alone(pipeline, scenes):
    jobs = [job(scenes[0]), job(b"no image"), job(scenes[1])]
    pipeline.submit(jobs)
    with pytest.raises(InvalidImage):
        jobs[1].future.result(30)
    assert all(len(jobs[n].future.result(30).detections) for n in (0, 2))


def test_cancelled_among_others_changes_no_answer(pipeline, scenes):
    jobs = [job(scenes[n % 2]) for n in range(40)]
    pipeline.submit(jobs)
    cancelled = [one for one in jobs[::3] if one.future.cancel()]
    found = {0: set(), 1: set()}
    for n, one in enumerate(jobs):
        if one not in cancelled:
            found[n % 2].add(tuple(one.future.result(30).detections.class_ids))
    assert all(len(kinds) == 1 for kinds in found.values())
    assert pipeline.admission.inside == 0


def test_the_way_of_images_is_warmed_up(engine, device):
    with engine:
        device.trace.clear()
        warm_up_images(engine)
    assert "kernel" in [operation for operation, _ in device.trace]


def test_a_device_that_crashed_takes_the_model_down_with_a_reason(pipeline, device, scenes):
    pipeline.submit([first := job(scenes[0])])
    assert first.future.result(60)
    device.crash()
    pipeline.submit([second := job(scenes[0])])
    with pytest.raises((DeviceLost, ModelNotReady), match="does not answer any more"):
        second.future.result(60)
    with pytest.raises(ModelNotReady, match="restart"):
        pipeline.submit([job(scenes[0])])
