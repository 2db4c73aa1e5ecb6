"""Other forms of what the stored files have, and numbers that exclude a family."""

import numpy as np
import pytest
from tests.engines.heads.expected import File

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def bus(shared):
    """Outputs of a file for bus.jpg, as its family preprocesses it, and its head."""

    def run(name, size=None):
        file = File(shared, name)
        if size is not None:
            file.graph = normalise(file.graph, size, lambda note: None)
            file.inputs, file.outputs = graph_inputs(file.graph), graph_outputs(file.graph)
        told = file.recognise()
        outputs, _ = file.run(file.images["bus.jpg"][0], file.spec(told.family))
        return file.inputs, outputs, open_head(told, file.inputs)

    return run


def reread(inputs, outputs, family=None, metadata=None):
    specs = [TensorSpec(name, "float32", array.shape) for name, array in outputs.items()]
    told = recognise(inputs, specs, metadata or {}, family)
    return told, open_head(told, inputs)


def test_scrfd_without_batch_and_names(bus):
    inputs, outputs, head = bus("scrfd-500m", (640, 640))
    want = head.decode(outputs, 0, PredictOptions())
    flat = {str(i): array[0] for i, array in enumerate(outputs.values())}
    told, head = reread(inputs, flat)
    assert (told.family, told.outputs) == ("scrfd", tuple("012345678"))
    assert head.decode(flat, 0, PredictOptions()).boxes.tolist() == want.boxes.tolist()
    bare = dict(list(flat.items())[:6])
    told, head = reread(inputs, bare)
    assert (told.family, told.skeleton) == ("scrfd", None)
    assert head.decode(bare, 0, PredictOptions()).keypoints is None
    # Levels in another order are refused, as nothing tells which is which.
    assert reread(inputs, dict(reversed(flat.items())))[0].family is None


def test_scores_of_ppyoloe_may_be_transposed(bus):
    inputs, outputs, head = bus("ppyoloe")
    want = head.decode(outputs, 0, PredictOptions())
    boxes, scores = outputs.values()
    turned = {"concat_14.tmp_0": scores.transpose(0, 2, 1), "tmp_16": boxes}
    told, head = reread(inputs, turned)
    assert told.family == "ppyoloe"
    assert head.contradiction(turned) is None
    assert head.decode(turned, 0, PredictOptions()).boxes.tolist() == want.boxes.tolist()


def test_names_do_not_decide_between_two_tensors(bus):
    inputs, outputs, _ = bus("ppyoloe")
    boxes, scores = outputs.values()
    told, _ = reread(inputs, {"scores": scores, "boxes": boxes})
    assert told.open == ("yolo-nas", "ppyoloe", "damo-yolo")
    four = {"a": boxes, "b": scores[:, :, :4]}
    assert reread(inputs, four, "yolo-nas")[0].outputs == ("a", "b")
    assert reread(inputs, four, "damo-yolo")[0].outputs == ("b", "a")
    _, head = reread(inputs, four, "damo-yolo")
    assert "of the scores, column 0 is no probability" in head.contradiction(four)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda boxes: boxes / 320, "boxes are no pixels"),
        (lambda boxes: boxes[..., [2, 3, 0, 1]], "boxes are no corners"),
        (lambda boxes: boxes[..., [1, 0, 3, 2]], "column 1 is no y"),
        (
            lambda boxes: np.concatenate([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], 2),
            "column 2 is no x",
        ),
    ],
)
def test_boxes_of_another_form_exclude_ppyoloe(bus, change, says):
    _, outputs, head = bus("ppyoloe")
    reason = head.contradiction(outputs | {"boxes": change(outputs["boxes"])})
    assert says in reason


@pytest.mark.parametrize(
    ("file", "size", "output", "change", "says"),
    [
        ("retinaface-mnet025", (640, 640), "conf", lambda a: a * 0.5, "do not add up to 1"),
        ("retinaface-mnet025", (640, 640), "loc", lambda a: a * 300, "no logarithms"),
        (
            "retinaface-mnet025",
            (640, 640),
            "loc",
            lambda a: np.linspace(0, 1, a.size // 2, dtype="f").repeat(2).reshape(a.shape),
            "no offset in a cell",
        ),
        ("scrfd-500m", (640, 640), "bbox_8", lambda a: a * 8, "in no strides"),
        ("scrfd-500m", (640, 640), "bbox_8", lambda a: a / 4, "find the same object in other"),
        (
            "yunet-n-dynamic",
            (640, 640),
            "bbox_8",
            lambda a: a * np.float32([4, 4, 1, 1]),
            "find the same object in other",
        ),
        ("ultraface-rfb-320", None, "boxes", lambda a: a * 320, "no fractions of the image"),
        ("ultraface-rfb-320", None, "boxes", lambda a: a[..., [2, 3, 0, 1]], "no corners"),
        ("ultraface-rfb-320", None, "scores", lambda a: a**2, "do not add up to 1"),
        ("centerface", (640, 640), "538", lambda a: np.exp(a) * 4, "no logarithms"),
        ("centerface", (640, 640), "539", lambda a: a * 100, "no places in cells"),
        ("yolo5face-500m", (320, 320), "output", lambda a: a.clip(0, 1), "landmarks, boxes are no"),
    ],
)
def test_other_numbers_exclude_a_family(bus, file, size, output, change, says):
    _, outputs, head = bus(file, size)
    assert head.contradiction(outputs) is None
    assert says in head.contradiction(outputs | {output: change(outputs[output])})


def test_a_detector_of_faces_is_built_and_finds_faces(shared, tmp_path):
    source = shared / "models" / "heads" / "yunet-n-dynamic.onnx"
    build(BuildPlan(source, "faces", tmp_path, size=(320, 320)))
    with Engine.open(tmp_path / "faces" / "1") as engine:
        assert (engine.card.family, engine.labels) == ("yunet", ("face",))
        found = engine.detect(read_image(shared / "data" / "bus.jpg"), PredictOptions(conf=0.5))
    assert len(found) == 2
