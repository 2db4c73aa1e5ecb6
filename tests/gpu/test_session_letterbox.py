"""An engine that letterboxes on a GPU finds what it finds where the host does it."""

from collections.abc import Iterator

import numpy as np
import pytest
from tests.drawn import draw
from tests.engines.tiny import tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine

pytestmark = pytest.mark.real

SIZES = [(64, 80), (480, 640), (1300, 2200), (37, 400)]


@pytest.fixture
def engine(device, backend, tmp_path) -> Iterator[Engine]:
    """Built for this GPU, of which all memory is free again in the end."""
    model = tiny_detector(tmp_path / "tiny.onnx")
    build(BuildPlan(model, "tiny", tmp_path, backend, max_batch=4))
    # What a first engine leaves behind stays with the process: libraries, and the driver's own.
    with Engine.open(tmp_path / "tiny" / "1") as first:
        first.outputs_of(draw(64, 80, 0))
    with device.current():
        free, _ = device.memory()
    with Engine.open(tmp_path / "tiny" / "1") as engine:
        yield engine
    with device.current():
        assert device.memory()[0] == free


def test_the_gpu_letterboxes_as_the_host_does(engine):
    session = engine.images
    assert session is not None
    images = [draw(height, width, seed) for seed, (height, width) in enumerate(SIZES)]
    rows = np.empty((len(images), *engine.preprocessor.spec.row_shape), np.uint8)
    for pixels, row in zip(images, rows, strict=True):
        engine.preprocessor(pixels, row)
    by_host = session.infer({engine.card.inputs[0].name: rows})["output0"]
    placed = [session.place(pixels)[0] for pixels in images]
    by_gpu = [session.infer_images(placed)["output0"] for _ in range(20)]
    for again in by_gpu:
        np.testing.assert_array_equal(again, by_gpu[0])
    # A grey level may move a box of this network by a pixel, and its confidence by little.
    best = by_host[..., 4].max(axis=1)
    np.testing.assert_allclose(by_gpu[0][..., 4].max(axis=1), best, atol=0.02)
