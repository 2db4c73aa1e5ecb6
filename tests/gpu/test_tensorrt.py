"""Engines of TensorRT, built for this GPU and run on it, find what ONNX Runtime finds."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tests.drawn import draw
from tests.gpu.subject import ROWS, Subject

from fovea_engines.backends.registry import mismatch
from fovea_engines.backends.tensorrt.layers_file import LAYERS_FILE, PlanLayers
from fovea_engines.build.acceptance import compare_engines
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.rebuild import rebuild
from fovea_engines.device import gpu_here
from fovea_engines.engine import Engine
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_preprocess.errors import BackendUnavailable

# TensorRT tries kernels out, for minutes.
pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
LEAST = {"fp32": 0.95, "fp16": 0.95, "int8": 0.8}
OLD = "1.0.0.7"


@pytest.fixture(params=["tiny", "yolov8n"])
def subject(request) -> Subject:
    if request.param == "tiny":
        return request.getfixturevalue("tiny")
    shared = request.getfixturevalue("shared")
    images = shared / "data" / "coco64"
    return Subject(shared / "models" / "yolov8n.onnx", images / "calibration", images / "val")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_it_finds_what_onnx_runtime_finds(backend, subject, precision, tmp_path):
    repository = tmp_path / "r"
    plan = BuildPlan(
        subject.model,
        "d",
        repository,
        backend,
        max_batch=ROWS,
        precision=precision,
        calibration=subject.calibration if precision == "int8" else None,
        images=subject.images,
    )
    card = build(plan)
    assert (card.judge, card.gpu, card.precision) == (None, gpu_here(), precision)
    # The image front, and the NMS tail.
    assert (card.inputs[0].dtype, card.outputs[0].shape[2]) == ("uint8", 6)
    build(BuildPlan(subject.model, "source", repository, "onnxruntime"))
    with Engine.open(repository / "d/1") as engine, Engine.open(repository / "source/1") as source:
        assert engine.images is not None
        found = compare_engines(source, engine, subject.images)
    assert found.detections
    assert found.quality >= LEAST[precision]
    # Kernels that RTX compiles as it loads may round otherwise than those of the build.
    assert found.quality == pytest.approx(card.agreement.quality, abs=0.01)


def test_a_row_is_the_same_alone_in_a_batch_and_beside_other_callers(folder):
    with Engine.open(folder) as engine:
        name, (_, height, width, _) = engine.card.inputs[0].name, engine.card.inputs[0].shape
        rows = np.stack([draw(height, width, seed) for seed in range(ROWS)])

        def infer(batch: np.ndarray) -> np.ndarray:
            return engine.session.infer({name: batch})["output0"]

        alone = np.concatenate([infer(rows[i : i + 1]) for i in range(ROWS)])
        assert alone[..., 4].max() > 0.25
        for count in range(1, ROWS + 1):
            # Best scores: rows of equal ones may swap in kernels of another batch size.
            best = infer(rows[:count])[..., 4].max(axis=1)
            np.testing.assert_allclose(best, alone[:count, :, 4].max(axis=1), atol=1e-4)

        def serve(seed: int) -> None:
            for step in range(100):
                i = (seed + step) % ROWS
                np.testing.assert_array_equal(infer(rows[i : i + 1]), alone[i : i + 1])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(serve, range(8)))


def test_layers_have_the_precision_they_compute_in(folder, record_property):
    """Of a dynamic batch, too, of which TensorRT 10 says "N/A due to dynamic shapes"."""
    found = PlanLayers.read(folder / LAYERS_FILE)
    kinds = Counter((layer.type, layer.precision) for layer in found.layers)
    record_property(found.source, {" ".join(kind): count for kind, count in kinds.items()})
    assert "float32" in {layer.precision for layer in found.layers}
    assert not [layer.name for layer in found.layers if "N/A" in layer.precision]


def test_an_engine_of_another_release_is_built_again(folder):
    pixels = draw(64, 80, 0)
    with Engine.open(folder) as engine:
        want = engine.detect(pixels)
    card = EngineCard.read(folder / CARD_FILE)
    replace(card, backend_version=OLD).write(folder / CARD_FILE)
    with pytest.raises(BackendUnavailable, match=rf"was built with \S+ {OLD}.*--rebuild"):
        Engine.open(folder)
    again = rebuild(folder)
    assert mismatch(again) is None
    assert (again.backend_version, again.gpu) == (card.backend_version, card.gpu)
    assert (again.judge, again.agreement) == (None, card.agreement)
    with Engine.open(folder) as engine:
        found = engine.detect(pixels)
    assert len(want)
    np.testing.assert_array_equal(found.class_ids, want.class_ids)
    np.testing.assert_allclose(found.boxes, want.boxes, atol=0.5)
