"""The three stages with a real engine: right answers, isolated failures, an honest death."""

import threading
from pathlib import Path

import numpy as np
import pytest

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.detect.options import PredictOptions
from fovea_engines.engine import Engine
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InferenceFailed, ModelNotReady, QueueFull, ShuttingDown
from fovea_preprocess.image import ImageLimits, decode_image
from fovea_server.images.job import ImageJob
from fovea_server.images.pipeline import Pipeline
from fovea_server.statistics.model import ModelStatistics

DEMO = Path(__file__).resolve().parents[3] / "server" / "fovea_server" / "demo"


@pytest.fixture(scope="module", params=["openvino", "onnxruntime"])
def folder(request, tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp(request.param)
    build(
        BuildPlan(
            source=DEMO / "digits.onnx",
            name="digits",
            repository=repository,
            backend=request.param,
            max_batch=4,
        )
    )
    return ModelRepository(repository).folder("digits")


@pytest.fixture(scope="module")
def scenes() -> list[bytes]:
    return [(DEMO / f"scene-{n}.jpg").read_bytes() for n in (1, 2)]


@pytest.fixture
def pipeline(folder):
    made = Pipeline(
        Engine.open(folder),
        limits=ImageLimits(),
        max_queue=64,
        max_queue_delay_s=0.02,
        statistics=ModelStatistics(),
    )
    yield made
    made.close(10)


def job(data: bytes, **options) -> ImageJob:
    return ImageJob(data, PredictOptions(**options))


def test_batched_answers_are_those_of_one_image_at_a_time(pipeline, folder, scenes):
    with Engine.open(folder) as engine:
        expected = [engine.detect(decode_image(scene).pixels) for scene in scenes]
    jobs = [job(scenes[n % 2]) for n in range(32)]
    pipeline.submit(jobs)
    for n, one in enumerate(jobs):
        found = one.future.result(30).detections
        assert np.array_equal(found.class_ids, expected[n % 2].class_ids)
        assert np.allclose(found.boxes, expected[n % 2].boxes, atol=0.05)
        assert np.allclose(found.scores, expected[n % 2].scores, atol=1e-4)
    assert pipeline.admission.inside == 0


def test_cancelled_among_others_changes_no_answer(pipeline, scenes):
    jobs = [job(scenes[n % 2]) for n in range(40)]
    pipeline.submit(jobs)
    cancelled = [one for one in jobs[::3] if one.future.cancel()]
    counts = {0: set(), 1: set()}
    for n, one in enumerate(jobs):
        if one not in cancelled:
            counts[n % 2].add(tuple(one.future.result(30).detections.class_ids))
    assert all(len(kinds) == 1 for kinds in counts.values())
    assert pipeline.admission.inside == 0


def test_all_or_none_are_accepted(pipeline, scenes):
    first = [job(scenes[0]) for _ in range(40)]
    pipeline.submit(first)
    with pytest.raises(QueueFull):
        pipeline.submit([job(scenes[0]) for _ in range(64)])
    assert all(len(one.future.result(30).detections) for one in first)
    assert pipeline.admission.inside == 0


def test_a_batch_that_fails_does_not_harm_the_next(pipeline, scenes, monkeypatch):
    def broken(feeds, *, alone=True):
        raise InferenceFailed("the device said no")

    bad = job(scenes[0])
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.engine.session, "infer", broken)
        pipeline.submit([bad])
        with pytest.raises(InferenceFailed, match="said no"):
            bad.future.result(30)
    good = job(scenes[0])
    pipeline.submit([good])
    assert len(good.future.result(30).detections) > 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_postprocess_stage_does_not_keep_it_from_closing(pipeline, scenes, monkeypatch):
    def deadly(outputs, row, options):
        raise KeyboardInterrupt

    head = type(pipeline.engine.head)
    monkeypatch.setattr(head, "decode", lambda self, *arguments: deadly(*arguments))
    jobs = [job(scenes[0]) for _ in range(60)]
    pipeline.submit(jobs)
    for one in jobs:
        with pytest.raises(ModelNotReady, match="postprocess stage has died"):
            one.future.result(30)
    closing = threading.Thread(target=pipeline.close, args=(10,))
    closing.start()
    closing.join(30)
    assert not closing.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stage_that_dies_fails_everyone_who_waits(pipeline, scenes, monkeypatch):
    def deadly(feeds, *, alone=True):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.engine.session, "infer", deadly)
    jobs = [job(scenes[0]) for _ in range(12)]
    pipeline.submit(jobs)
    for one in jobs:
        with pytest.raises(ModelNotReady, match="infer stage has died"):
            one.future.result(30)
    with pytest.raises(ModelNotReady):
        pipeline.submit([job(scenes[0])])


def test_closing_finishes_what_was_accepted_and_takes_nothing_new(folder, scenes):
    pipeline = Pipeline(
        Engine.open(folder),
        limits=ImageLimits(),
        max_queue=64,
        max_queue_delay_s=0.0,
        statistics=ModelStatistics(),
    )
    jobs = [job(scenes[0]) for _ in range(20)]
    pipeline.submit(jobs)
    closing = threading.Thread(target=pipeline.close, args=(30,))
    closing.start()
    assert all(len(one.future.result(30).detections) for one in jobs)
    closing.join(30)
    assert not closing.is_alive()
    with pytest.raises(ShuttingDown):
        pipeline.submit([job(scenes[0])])
