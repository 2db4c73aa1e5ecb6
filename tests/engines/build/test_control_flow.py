"""Graphs with branches: served as they are, and refused where they cannot be changed."""

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper
from tests.drawn import draw
from tests.engines.tiny import constant, save

from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.slow

SHAPE = [1, 3, 8, 8]


@pytest.fixture(scope="module")
def branching(tmp_path_factory):
    """A network that doubles dark images, by a weight that only the branch reads."""
    branches = {
        f"{word}_branch": helper.make_graph(
            [helper.make_node("Mul", ["images", factor], [f"{word}_out"])],
            word,
            [],
            [helper.make_tensor_value_info(f"{word}_out", onnx.TensorProto.FLOAT, SHAPE)],
        )
        for word, factor in (("then", "one"), ("else", "two"))
    }
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "half"], ["bright"]),
        helper.make_node("If", ["bright"], ["out"], **branches),
    ]
    numbers = {"half": 0.5, "one": 1, "two": 2}
    weights = [constant(name, np.float32(value)) for name, value in numbers.items()]
    path = tmp_path_factory.mktemp("models") / "branching.onnx"
    return save(path, nodes, [("images", SHAPE)], [("out", SHAPE)], weights)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_both_branches_are_served(branching, tmp_path, backend):
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "drawn.png"), draw(8, 8, 0))
    build(BuildPlan(branching, "m", tmp_path / "r", backend, images=tmp_path / "images"))
    with Engine.open(tmp_path / "r" / "m" / "1") as engine:
        assert not engine.session.steady
        for level, expected in ((50, 100), (200, 200)):
            found = engine.outputs_of(np.full((8, 8, 3), level, np.uint8))["out"]
            np.testing.assert_allclose(found * 255, expected, rtol=1e-5)


def test_what_would_have_to_change_the_branches_is_refused(branching, tmp_path):
    for options in ({"precision": "fp16"}, {"tensorrt": tmp_path / "m.onnx"}):
        with pytest.raises(UnsupportedModel, match=r"control flow \(If\)"):
            build(BuildPlan(branching, "m", tmp_path / "r", **options))
