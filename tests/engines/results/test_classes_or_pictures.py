"""Maps of many channels: those of pictures are no classes, whatever their levels; scores are."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.tiny import constant, save

from fovea_engines.evaluation.observe import recognise_graph

SIDE = 64
CHANNELS = 10


def network(path, last, axis, *, name="out"):
    """Write a network whose ten channels are mixtures of a pixel's colours, then `last`.

    It takes RGB of any range: a pixel is divided by the largest of the image first.
    """
    mixtures = np.random.default_rng(1).uniform(0.1, 0.5, (CHANNELS, 3, 1, 1))
    if last == "scores":
        # Ten colours, of which a pixel is of the nearest; 16 pixels have the same.
        mixtures = np.random.default_rng(1).normal(0, 30, (CHANNELS, 3, 1, 1))
    weights = [
        constant("mixtures", mixtures.astype(np.float32)),
        constant("factor", np.float32(255)),
        constant("half", np.float32(0.5)),
        constant("sizes", np.array([1, CHANNELS, SIDE, SIDE])),
    ]
    nodes = [
        helper.make_node("GlobalMaxPool", ["images"], ["brightest"]),
        helper.make_node("ReduceMax", ["brightest"], ["most"], axes=[1], keepdims=1),
        helper.make_node("Div", ["images", "most"], ["levels"]),
    ]
    if last == "scores":
        pooled = {"kernel_shape": [16, 16], "strides": [16, 16]}
        nodes += [
            helper.make_node("AveragePool", ["levels"], ["pooled"], **pooled),
            helper.make_node("Conv", ["pooled", "mixtures"], ["few"]),
            helper.make_node("Resize", ["few", "", "", "sizes"], ["channels"], mode="nearest"),
        ]
    else:
        nodes.append(helper.make_node("Conv", ["levels", "mixtures"], ["mixed"]))
        nodes.append(
            {
                "unit": helper.make_node("Identity", ["mixed"], ["channels"]),
                "signed": helper.make_node("Sub", ["mixed", "half"], ["channels"]),
                "levels": helper.make_node("Mul", ["mixed", "factor"], ["channels"]),
            }[last]
        )
    shape, order = [1, CHANNELS, SIDE, SIDE], [0, 1, 2, 3]
    if axis == 3:
        shape, order = [1, SIDE, SIDE, CHANNELS], [0, 2, 3, 1]
    nodes.append(helper.make_node("Transpose", ["channels"], [name], perm=order))
    return save(path, nodes, [("images", [1, 3, SIDE, SIDE])], [(name, shape)], weights)


@pytest.mark.parametrize(("axis", "family"), [(1, "semantic"), (3, "deeplab")])
@pytest.mark.parametrize("last", ["unit", "signed", "levels"])
def test_a_picture_of_many_channels_is_no_map_of_classes(tmp_path, last, axis, family):
    model = onnx.load(network(tmp_path / "m.onnx", last, axis))
    told, _ = recognise_graph(model)
    assert told.family is None
    assert not told.open
    assert "its channels are no classes" in told.reason
    assert f"say --head {family} if it is that" in told.reason
    named, _ = recognise_graph(model, family)
    assert named.family == family
    assert named.doubt.startswith("its channels are no classes")


@pytest.mark.parametrize(("axis", "family"), [(1, "semantic"), (3, "deeplab")])
def test_scores_of_classes_are(tmp_path, axis, family):
    told, _ = recognise_graph(onnx.load(network(tmp_path / "m.onnx", "scores", axis)))
    assert (told.family, told.doubt) == (family, None)


def test_what_the_file_says_is_not_doubted(tmp_path):
    told, _ = recognise_graph(onnx.load(network(tmp_path / "m.onnx", "unit", 1, name="logits")))
    assert (told.family, told.doubt) == ("semantic", None)
    source = onnx.load(network(tmp_path / "m.onnx", "unit", 1))
    names = {"names": str([f"kind {i}" for i in range(CHANNELS)])}
    helper.set_model_props(source, names)
    assert recognise_graph(source)[0].family == "semantic"
