"""What a pipeline counts of the images that it answers, refuses and loses."""

import threading
from pathlib import Path

import pytest

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_preprocess.errors import InferenceFailed, InvalidImage, QueueFull
from fovea_preprocess.image import ImageLimits
from fovea_server.images.job import ImageJob
from fovea_server.images.pipeline import Pipeline
from fovea_server.statistics.model import FailureReason, ModelStatistics

DEMO = Path(__file__).resolve().parents[3] / "server" / "fovea_server" / "demo"
IMAGE = (DEMO / "scene-1.jpg").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp("counts")
    build(BuildPlan(DEMO / "digits.onnx", "digits", repository, "onnxruntime", max_batch=4))
    return repository / "digits" / "1"


@pytest.fixture
def statistics() -> ModelStatistics:
    return ModelStatistics()


@pytest.fixture
def pipeline(folder, statistics):
    made = Pipeline(
        Engine.open(folder),
        limits=ImageLimits(),
        max_queue=8,
        max_queue_delay_s=0.0,
        statistics=statistics,
    )
    yield made
    made.close(10)


def jobs(count: int, data: bytes = IMAGE) -> list[ImageJob]:
    return [ImageJob(data, PredictOptions()) for _ in range(count)]


def test_images_count_as_inferences_and_batches_as_executions(pipeline, statistics):
    sent = jobs(6)
    pipeline.submit(sent)
    for job in sent:
        job.future.result(30)
    pipeline.close(10)
    assert statistics.inference_count == statistics.success.count == 6
    assert sum(rows * one.compute_infer.count for rows, one in statistics.batches.items()) == 6
    assert statistics.execution_count <= 6
    spans = (statistics.compute_input, statistics.compute_infer, statistics.compute_output)
    assert all(span.count == 6 and span.ns > 0 for span in (statistics.queue, *spans))
    assert statistics.success.ns >= sum(span.ns for span in spans)
    assert not statistics.failures


def test_what_is_not_an_image_is_a_failure_that_no_engine_saw(pipeline, statistics):
    (sent,) = jobs(1, b"no image")
    pipeline.submit([sent])
    with pytest.raises(InvalidImage):
        sent.future.result(30)
    assert statistics.failures == {FailureReason.OTHER: 1}
    assert statistics.execution_count == 0


def test_what_finds_no_room_is_rejected(pipeline, statistics, monkeypatch):
    go = threading.Event()
    infer = pipeline.engine.session.infer

    def held(feeds, *, alone=True):
        go.wait(30)
        return infer(feeds, alone=alone)

    monkeypatch.setattr(pipeline.engine.session, "infer", held)
    sent = jobs(8)
    pipeline.submit(sent)
    with pytest.raises(QueueFull):
        pipeline.submit(jobs(2))
    assert statistics.failures == {FailureReason.REJECTED: 2}
    assert pipeline.pending > 0
    sent[-1].future.cancel()
    go.set()
    for job in sent[:-1]:
        job.future.result(30)
    assert statistics.failures[FailureReason.CANCELED] == 1
    assert statistics.success.count == 7
    assert pipeline.pending == 0


def test_an_engine_that_fails_is_told_as_such(pipeline, statistics, monkeypatch):
    def broken(feeds, *, alone=True):
        raise InferenceFailed("it is broken")

    monkeypatch.setattr(pipeline.engine.session, "infer", broken)
    (sent,) = jobs(1)
    pipeline.submit([sent])
    with pytest.raises(InferenceFailed):
        sent.future.result(30)
    assert statistics.failures == {FailureReason.BACKEND: 1}
