"""Keypoints: those of YOLOs by hand, and MoveNet by networks of its signatures.

The persons of these networks stand where an image is brightest.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper, save
from tests.engines.heads import exports as made
from tests.engines.heads.by_hand import opened, told
from tests.engines.tiny import constant

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.heads.recognise import open_head
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import PERSON
from fovea_engines.session import TensorSpec

# y x of the keypoints from the brightest pixel, as fractions of the input; the last is unsure.
PLACES = np.column_stack([np.linspace(0, 0.25, 17), np.linspace(-0.125, 0.125, 17)])
SCORES = np.append(np.linspace(0.9, 0.5, 16), 0.05)
WHERE = np.array([130, 70])  # x y in an image of 320 x 240


def network(path, side):
    """Write a network that takes int32 images, as TensorFlow Hub has it."""
    constants = {
        "one row": np.array([-1]), "side": np.float32(side), "half": np.float32(0.5),
        "shape": np.array([1, 1, 1, 2]),
        "places": PLACES[None, None].astype(np.float32),
        "scores": SCORES[None, None, :, None].astype(np.float32),
    }  # fmt: skip
    steps = [
        ("Cast", ["input"], "floats", {"to": TensorProto.FLOAT}),
        ("ReduceMean", ["floats"], "grey", {"axes": [3]}),
        ("Reshape", ["grey", "one row"], "line", {}),
        ("ArgMax", ["line"], "index", {"axis": 0}),
        ("Cast", ["index"], "number", {"to": TensorProto.FLOAT}),
        ("Div", ["number", "side"], "rows", {}),
        ("Floor", ["rows"], "y", {}),
        ("Sub", ["rows", "y"], "x", {}),
        ("Add", ["y", "half"], "middle", {}),
        ("Div", ["middle", "side"], "down", {}),
        ("Concat", ["down", "x"], "pair", {"axis": 0}),
        ("Reshape", ["pair", "shape"], "place", {}),
        ("Add", ["places", "place"], "points", {}),
        ("Concat", ["points", "scores"], "person", {"axis": 3}),
    ]
    nodes = [helper.make_node(kind, taken, [made], **more) for kind, taken, made, more in steps]
    nodes[-1].output[0] = "output_0"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "movenet",
        [value("input", TensorProto.INT32, [1, side, side, 3])],
        [value("output_0", TensorProto.FLOAT, [1, 1, 17, 3])],
        [constant(name, array) for name, array in constants.items()],
    )  # fmt: skip
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def image():
    found = np.full((240, 320, 3), 60, np.uint8)
    x, y = WHERE
    found[y - 4 : y + 5, x - 4 : x + 5] = [250, 240, 255]
    return found


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_the_person_stands_where_the_image_is_brightest(tmp_path, image, backend):
    build(BuildPlan(network(tmp_path / "m.onnx", 192), "m", tmp_path / "models", backend))
    with Engine.open(tmp_path / "models" / "m" / "1") as engine:
        assert (engine.card.family, engine.card.task) == ("movenet", "pose")
        assert (engine.card.skeleton, engine.labels) == (PERSON, ("person",))
        assert engine.card.preprocess.dtype == "int32"
        found = engine.detect(image)
    assert len(found) == 1
    # The longer side of the image, 320 pixels, is that of the input.
    expected, near = WHERE + 320 * PLACES[:, ::-1], 320 / 192 * 4
    assert np.abs(found.keypoints[0, :, :2] - expected).max() < near
    assert found.keypoints[0, :, 2] == pytest.approx(SCORES)
    assert np.abs(found.boxes[0] - [*expected[0], *expected[15]]).max() < near
    assert found.scores == pytest.approx([SCORES[:16].mean()])


def single(*scores):
    outputs = np.zeros((1, 1, 17, 3), np.float32)
    outputs[0, 0, :, :2] = 0.5 + PLACES
    outputs[0, 0, : len(scores), 2] = scores
    return {"output_0": outputs}


def decoded(outputs, **options):
    image = [TensorSpec("input", "int32", (1, 192, 192, 3))]
    return open_head(told(single(0.9)), image).decode(outputs, 0, PredictOptions(**options))


def test_nobody_is_found_where_no_keypoint_is_sure():
    assert len(decoded(single(0.05, 0.09))) == 0
    assert len(decoded(single(0.9, 0.8, 0.05))) == 1
    assert len(decoded(single(0.9, 0.8), conf=0.9)) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_keypoint_is_none(bad):
    outputs = single(0.9, 0.8, 0.7)
    sound = decoded(outputs).keypoints[0]
    outputs["output_0"][0, 0, 16, 0] = bad
    broken = decoded(outputs).keypoints[0]
    assert (broken[:16] == sound[:16]).all()
    assert not broken[16].any()


@pytest.mark.parametrize(
    ("family", "outputs", "row"),
    [
        ("yolov8-pose", made.pose(), lambda table: table[0, 5:, made.at()]),
        ("yolov10-pose", made.pose_rows(), lambda table: table[0, 0, 6:]),
        (
            "movenet-multipose",
            made.movenet(6),
            lambda table: (
                table[0, 2, :51].reshape(17, 3)[:, [1, 0, 2]].ravel() * ([640, 640, 1] * 17)
            ),
        ),
    ],
)
def test_keypoints_are_columns_of_their_box(family, outputs, row):
    found = told(outputs, {"kpt_shape": "[17, 3]"}, size=(640, 640))
    assert (found.family, found.skeleton) == (family, PERSON)
    [points] = opened(found, (640, 640)).decode(outputs, 0, PredictOptions()).keypoints
    [table] = outputs.values()
    assert points.ravel() == pytest.approx(row(table), abs=1e-3)
