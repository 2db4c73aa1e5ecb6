"""Collected models that are served as tensors give what plain ONNX Runtime gives.

tests/e2e/test_every_head.py builds the detectors.
"""

import json
import shutil

import numpy as np
import onnxruntime
import pytest
from tests.conftest import SHARED

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluate.samples import read_image
from fovea_preprocess.preprocessor import Preprocessor

pytestmark = [pytest.mark.real, pytest.mark.slow]

HEADS = SHARED / "models" / "heads"
DECODED = {"detect", "face"}
FILES = sorted(
    path.stem
    for path in HEADS.glob("*.onnx")
    if json.loads(path.with_suffix(".expected.json").read_text())["task"] not in DECODED
)
# Outputs that a top-k fills: rows of almost equal scores may come in any order.
RANKED = {"yolo26-seg", "yolo26-obb", "yolo26-pose"}
# ONNX Runtime computes the normalised graph as it is, so each way to normalise is tried once.
ON_BOTH = {"deeplabv3-mnv2", "yolo26-seg"}
CASES = [(file, "openvino") for file in FILES]
CASES += [(file, "onnxruntime") for file in FILES if file in ON_BOTH]


@pytest.fixture(scope="module")
def bus(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bus")
    shutil.copy(shared / "data" / "bus.jpg", folder)
    return folder


def plainly(name, row):
    """Run the file as its exporter wrote it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(HEADS / f"{name}.onnx", options)
    [image] = session.get_inputs()
    answers = session.run(None, {image.name: row})
    return dict(zip((o.name for o in session.get_outputs()), answers, strict=True))


@pytest.mark.skipif(not FILES, reason=f"the collected models are absent: {HEADS} is not there")
@pytest.mark.parametrize(("name", "backend"), CASES)
def test_it_gives_what_its_source_gives(tmp_path, bus, name, backend):
    build(BuildPlan(HEADS / f"{name}.onnx", "m", tmp_path, backend, images=bus))
    pixels = read_image(bus / "bus.jpg")
    with Engine.open(tmp_path / "m" / "1") as engine:
        spec = engine.card.preprocess
        row = np.empty((1, *spec.row_shape), spec.dtype)
        Preprocessor(spec)(pixels, row[0])
        found = engine.outputs_of(pixels)
    expected = plainly(name, row)
    assert found.keys() == expected.keys()
    for output, want in expected.items():
        have = found[output]
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        if name in RANKED:
            want, have = np.sort(want, axis=None), np.sort(have, axis=None)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, atol=1e-3 * np.abs(want).max(initial=1e-3))
        else:
            assert (have != want).mean() < 0.001
