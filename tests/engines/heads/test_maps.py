"""Classes of pixels, saliency and depth: which maps are recognised, and what is no map of them."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.tiny import constant, save

from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.map_encoding import NOTHING
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

IMAGE = [TensorSpec("input", "float32", (1, 3, 64, 96))]
USUAL = PredictOptions()
SEMANTIC, DEPTH, ANY = "--head semantic", "--head depth", "--head u2net or --head isnet"
NAMES = {"names": "['road', 'lane', 'sky']"}


def told_of(*outputs, family=None, **metadata):
    specs = [TensorSpec(name, dtype, shape) for name, dtype, *shape in outputs]
    specs = [TensorSpec(one.name, one.dtype, tuple(one.shape)) for one in specs]
    return recognise(IMAGE, specs, metadata, family)


@pytest.mark.parametrize(
    ("output", "metadata", "expected"),
    [
        (("logits", "float32", 1, 19, 16, 24), {}, "semantic"),
        (("out", "float32", 1, 21, 64, 96), {}, "semantic"),
        (("out", "float32", 1, 64, 96, 21), {}, "deeplab"),
        (("out", "int64", 1, 64, 96), {}, "class-map"),
        (("out", "int32", 1, 1, 32, 48), {}, "class-map"),
        (("out", "uint8", -1, -1, -1), {}, "class-map"),
        (("out", "float32", 1, 3, 16, 24), NAMES, "semantic"),
        (("out", "float32", 1, 3, 16, 24), {"task": "semantic-segmentation"}, "semantic"),
        (("out", "float32", 1, 3, 16, 24), {"names": "['road', 'lane']"}, ""),
        (("out", "float32", 1, 3, 64, 96), {}, SEMANTIC),  # an image
        (("out", "float32", 1, 64, 16, 24), {}, SEMANTIC),  # features
        (("out", "float32", 1, 17, 16, 24), {}, SEMANTIC),  # heat maps of keypoints
        (("out", "int64", 1, 20, 30), {}, ""),
        (("out", "bool", 1, 64, 96), {}, ""),
        (("predicted_depth", "float32", 1, 64, 96), {}, "depth"),
        (("depth", "float32", 1, 1, 64, 96), {}, "depth"),
        (("output", "float32", 1, 1, 64, 96), {"task": "depth-estimation"}, "depth"),
        (("output", "float32", 1, 64, 96), {}, DEPTH),
        (("output", "float32", 1, 1, 64, 96), {}, DEPTH),
        (("output", "float32", 1, 1, 64, 96), {}, ANY),
    ],
)
def test_shapes_names_and_metadata_tell_a_map_or_the_user_does(output, metadata, expected):
    told = told_of(output, **metadata)
    if " " not in expected and expected:
        assert told.family == expected
        return
    assert (told.family, told.open) == (None, ())
    assert expected in told.reason
    if expected:
        named = expected.split()[1]
        assert told_of(output, family=named).family == named


def test_what_stands_out_is_asked_for_by_the_task_and_known_by_seven_maps():
    one = ("output", "float32", 1, 1, 64, 96)
    assert set(told_of(one, task="saliency").open) == {"u2net", "isnet"}
    told = told_of(*((f"d{level}", "float32", 1, 1, 64, 96) for level in range(7)))
    assert (told.family, told.outputs) == ("u2net", ("d0",))
    head = open_head(told, IMAGE)
    values = np.linspace(0, 1, 64 * 96, dtype=np.float32).reshape(1, 1, 64, 96)
    assert head.contradiction({"d0": values}) is None
    assert "not a probability" in head.contradiction({"d0": values * 9 - 4})


def test_an_auxiliary_output_is_left_out():
    shape = "float32", 1, 21, 64, 96
    told = told_of(("out", *shape), ("aux", *shape))
    assert (told.family, told.outputs) == ("semantic", ("out",))


def test_class_ids_are_whole_numbers_and_those_that_are_left_out_are_nothing():
    head = open_head(told_of(("out", "int64", 1, 64, 96)), IMAGE)
    ids = np.arange(64 * 96).reshape(1, 64, 96) % 5
    assert head.contradiction({"out": ids}) is None
    found = head.decode({"out": ids}, 0, PredictOptions(classes=(1, 3)))
    assert set(np.unique(found.pixels())) == {1, 3, NOTHING}
    assert found.summary == "2 classes"
    ids[0, 3, 4] = -7
    assert "not contain class ids" in head.contradiction({"out": ids})
    assert head.decode({"out": ids}, 0, USUAL).pixels()[3, 4] == NOTHING


def test_scores_that_are_no_numbers_lose():
    head = open_head(told_of(("logits", "float32", 1, 3, 64, 96)), IMAGE)
    logits = np.zeros((1, 3, 64, 96), np.float32)
    logits[0, 0], logits[0, 1], logits[0, 2] = np.nan, -np.inf, -1
    before = logits.copy()
    assert (head.decode({"logits": logits}, 0, USUAL).pixels() == 2).all()
    assert np.array_equal(logits, before, equal_nan=True)
    assert head.unsound({"logits": logits}, 0) == "output logits"


@pytest.mark.parametrize("family", ["u2net", "isnet", "depth", "yolo-depth"])
def test_values_that_are_no_numbers_are_replaced(family):
    head = open_head(told_of(("output", "float32", 1, 1, 64, 96), family=family), IMAGE)
    values = np.full((1, 1, 64, 96), 2, np.float32)
    values[..., 3:8], values[..., 0], values[..., 1] = 5, np.nan, np.inf
    found = head.decode({"output": values}, 0, USUAL).values
    assert np.isfinite(found).all()
    # Nothing stands out where all is the same.
    same = head.decode({"output": np.full((1, 1, 64, 96), 0.3, np.float32)}, 0, USUAL).values
    assert np.unique(same).tolist() == pytest.approx([0.3] if "depth" in family else [0])
    negative = head.contradiction({"output": np.full((1, 1, 2, 2), -1.0)})
    assert family != "yolo-depth" or "depths in metres cannot be negative" in negative


SIDE, CHANNELS = 64, 10


def network(path, last, axis, *, name="out"):
    """Write a network whose ten channels are mixtures of a pixel's colours, then `last`.

    It takes RGB of any range: a pixel is divided by the largest of the image first.
    """
    random = np.random.default_rng(1)
    mixtures = random.uniform(0.1, 0.5, (CHANNELS, 3, 1, 1))
    if last == "scores":
        # Ten colours, of which a pixel is of the nearest; 16 pixels have the same.
        mixtures = random.normal(0, 30, (CHANNELS, 3, 1, 1))
    weights = [
        constant("mixtures", mixtures.astype(np.float32)),
        constant("factor", np.float32(255)),
        constant("half", np.float32(0.5)),
        constant("sizes", np.array([1, CHANNELS, SIDE, SIDE])),
    ]
    pooled = {"kernel_shape": [16, 16], "strides": [16, 16]}
    kinds = {
        "unit": [("Identity", ["mixed"], {})],
        "signed": [("Sub", ["mixed", "half"], {})],
        "levels": [("Mul", ["mixed", "factor"], {})],
        "scores": [
            ("AveragePool", ["mixed"], pooled),
            ("Resize", ["AveragePool", "", "", "sizes"], {"mode": "nearest"}),
        ],
    }
    steps = [
        ("GlobalMaxPool", ["images"], {}),
        ("ReduceMax", ["GlobalMaxPool"], {"axes": [1], "keepdims": 1}),
        ("Div", ["images", "ReduceMax"], {}),
        ("Conv", ["Div", "mixtures"], {}),
    ]
    nodes = [helper.make_node(kind, taken, [kind], **more) for kind, taken, more in steps]
    nodes[-1].output[0] = "mixed"
    nodes += [helper.make_node(kind, taken, [kind], **more) for kind, taken, more in kinds[last]]
    shape, order = [1, CHANNELS, SIDE, SIDE], [0, 1, 2, 3]
    if axis == 3:
        shape, order = [1, SIDE, SIDE, CHANNELS], [0, 2, 3, 1]
    nodes.append(helper.make_node("Transpose", [nodes[-1].output[0]], [name], perm=order))
    return save(path, nodes, [("images", [1, 3, SIDE, SIDE])], [(name, shape)], weights)


@pytest.mark.parametrize(("axis", "family"), [(1, "semantic"), (3, "deeplab")])
def test_channels_of_a_picture_are_no_classes_and_scores_are(tmp_path, axis, family):
    for last in ("unit", "signed", "levels"):
        model = onnx.load(network(tmp_path / "m.onnx", last, axis))
        told, _ = recognise_graph(model)
        assert (told.family, told.open) == (None, ())
        assert "its channels are not class scores" in told.reason
        assert f"choose --head {family}" in told.reason
        named, _ = recognise_graph(model, family)
        assert named.family == family
        assert named.doubt.startswith("its channels are not class scores")
    told, _ = recognise_graph(onnx.load(network(tmp_path / "m.onnx", "scores", axis)))
    assert (told.family, told.doubt) == (family, None)


def test_what_the_file_says_of_its_channels_is_not_doubted(tmp_path):
    told, _ = recognise_graph(onnx.load(network(tmp_path / "m.onnx", "unit", 1, name="logits")))
    assert (told.family, told.doubt) == ("semantic", None)
    source = onnx.load(network(tmp_path / "m.onnx", "unit", 1))
    helper.set_model_props(source, {"names": str([f"kind {i}" for i in range(CHANNELS)])})
    assert recognise_graph(source)[0].family == "semantic"
