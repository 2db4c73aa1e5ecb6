"""Distances as distributions, computed by hand, and NanoDet-m with its outputs joined."""

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.engines.heads.expected import File

from fovea_engines.evaluation.observe import Observer
from fovea_engines.heads.nanodet import SIDES
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real

SIZE = (128, 192)
CLASSES = 3


def last_cells(strides):
    """Scores and logits of levels whose last cell has a box: distances 1 2 3 and 4.5 strides."""
    levels = []
    for stride in strides:
        cells = (SIZE[0] // stride) * (SIZE[1] // stride)
        scores, logits = np.zeros((1, cells, CLASSES)), np.zeros((1, cells, 4, 8))
        scores[0, -1, 1] = 0.9
        for side, bins in enumerate([[1], [2], [3], [4, 5]]):
            logits[0, -1, side, bins] = 200.0
        levels.append((scores, logits.reshape(1, cells, SIDES)))
    return [np.concatenate(kind, axis=1).astype(np.float32) for kind in zip(*levels, strict=True)]


def by_hand(strides, centre):
    """Corners around a point of the last cell: 1 stride to the left, 2 up, 3 right, 4.5 down."""
    found = []
    for stride in strides:
        x, y = SIZE[1] - stride + centre(stride), SIZE[0] - stride + centre(stride)
        found.append([x - stride, y - 2 * stride, x + 3 * stride, y + 4.5 * stride])
    return found


@pytest.mark.parametrize(
    ("family", "centre"),
    [
        ("nanodet", lambda stride: (stride - 1) / 2),
        ("nanodet-joined", lambda stride: stride / 2),
        ("nanodet-plus", lambda stride: 0),
        ("picodet-raw", lambda stride: stride / 2),
    ],
)
def test_boxes_lie_around_the_points_of_their_cells(family, centre):
    kind = FAMILIES[family]
    scores, logits = last_cells(kind.strides)
    if family in ("nanodet", "picodet-raw"):
        ends = np.cumsum([(SIZE[0] // s) * (SIZE[1] // s) for s in kind.strides])[:-1]
        parts = [*np.split(scores, ends, axis=1), *np.split(logits, ends, axis=1)]
    else:
        parts = [np.concatenate([scores, logits], axis=2)]
    outputs = {str(i): part for i, part in enumerate(parts)}
    specs = [TensorSpec(name, "float32", part.shape) for name, part in outputs.items()]
    image = TensorSpec("data", "float32", (1, 3, *SIZE))
    told = recognise([image], specs, {}, family)
    assert (told.num_classes, told.outputs) == (CLASSES, tuple(outputs))
    head = open_head(told, [image])
    found = head.decode(outputs, 0, PredictOptions(iou=1))
    assert found.boxes.tolist() == pytest.approx(np.array(by_hand(kind.strides, centre)), abs=1e-3)
    assert found.class_ids.tolist() == [1] * len(kind.strides)
    assert found.scores == pytest.approx(0.9)
    assert head.contradiction(outputs) is None
    shares = {n: a if a.shape[2] < SIDES else np.clip(a, 0, 1) for n, a in outputs.items()}
    assert "no logits" in head.contradiction(shares)


@pytest.fixture(scope="module")
def joined(shared):
    """NanoDet-m with one output, as later versions have it."""
    file = File(shared, "nanodet-m-416")
    graph = file.graph.graph
    names = [output.name for output in graph.output]
    for scores, logits in zip(names[:3], names[3:], strict=True):
        graph.node.append(helper.make_node("Concat", [scores, logits], [f"j{scores}"], axis=2))
    levels = [f"j{name}" for name in names[:3]]
    graph.node.append(helper.make_node("Concat", levels, ["output"], axis=1))
    del graph.output[:]
    graph.output.append(
        helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, [1, 3549, 112])
    )
    file.outputs = graph_outputs(file.graph)
    return file


def test_it_is_no_yolox_of_107_classes(joined):
    told = joined.recognise()
    assert (told.family, told.num_classes) == ("nanodet-joined", 80)
    assert "not yolox" in told.reason
    assert recognise(graph_inputs(joined.graph), joined.outputs, {}).family == "yolox"


def test_joined_outputs_give_the_same_boxes_half_a_pixel_later(joined, shared):
    apart = File(shared, "nanodet-m-416")
    pixels, _ = apart.images["bus.jpg"]
    found = []
    for file in (apart, joined):
        told = file.recognise()
        outputs, _ = file.run(pixels, file.spec(told.family))
        found.append(open_head(told, file.inputs).decode(outputs, 0, PredictOptions()))
    assert found[1].scores.tolist() == found[0].scores.tolist()
    assert found[1].boxes - 0.5 == pytest.approx(found[0].boxes, abs=1e-3)


def test_a_yolox_is_no_nanodet(shared):
    file = File(shared, "yolox-nano-decoded")
    told = recognise(file.inputs, file.outputs, {}, observe=Observer(file.graph))
    assert told.family == "yolox-decoded"
    assert any(one.family == "nanodet-joined" and one.against for one in told.verdicts)


@pytest.mark.parametrize(
    ("strides", "family"), [((8, 16, 32), "nanodet"), ((8, 16, 32, 64), "picodet-raw")]
)
def test_distances_of_other_bins_are_not_decoded(strides, family):
    """`reg_max` is 7 in both families, which makes eight bins for each side."""
    image = [TensorSpec("images", "float32", (1, 3, 416, 416))]
    counts = [(-(-416 // stride)) ** 2 for stride in strides]
    for bins, want in ((8, family), (11, None), (17, None)):
        outputs = [TensorSpec(f"c{n}", "float32", (1, n, 80)) for n in counts]
        outputs += [TensorSpec(f"d{n}", "float32", (1, n, 4 * bins)) for n in counts]
        assert recognise(image, outputs, {}).family == want
