"""DETR, and RT-DETR and its kin without post-processing, on the files of their exporters."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.helper import make_tensor_value_info
from tests.engines.heads.expected import File, unmatched
from tests.engines.tiny import constant

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.edit.names import rename, strip_metadata
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.heads.recognise import open_head
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.preprocessor import Preprocessor

pytestmark = pytest.mark.real

FILES = {
    "rtdetrv2-bare": "rtdetr-raw",
    "dfine-bare": "rtdetr-raw",
    "libreyolo-dfine": "rtdetr-raw",
    "hf-rtdetr": "rtdetr-raw",
    "hf-detr": "detr",
}


@pytest.mark.parametrize("name", FILES)
def test_rows_are_those_of_the_family(shared, name):
    file = File(shared, name)
    assert file.recognise().family == file.recognise(metadata=False).family == FILES[name]
    # Torch's filter, which transformers uses, rounds otherwise than Pillow's. A grey level in a
    # tenth of the values moves scores of these untrained networks by as much as .02.
    file.assert_expected(score=2e-2 if name.startswith("hf") else 1e-3)


def with_masks(shared):
    """LibreYOLO's D-FINE, and beside it logits of masks that are small boxes, those of queries."""
    model = onnx.load(shared / "models" / "heads" / "libreyolo-dfine.onnx")
    places = (np.arange(80, dtype=np.float32) + 0.5) / 80
    model.graph.initializer.extend(
        [
            constant("across", places[None, None, None]),
            constant("down", places[None, None, :, None]),
            constant("parts", np.array([1, 1, 1, 1])),
            constant("last", np.array([3])),
            constant("ten", np.float32(10)),
        ]
    )
    parts = ["cx", "cy", "w", "h"]
    model.graph.node.extend(
        [
            helper.make_node("Unsqueeze", ["pred_boxes", "last"], ["columns"]),
            helper.make_node("Split", ["columns", "parts"], parts, axis=2),
            helper.make_node("Sub", ["across", "cx"], ["right"]),
            helper.make_node("Sub", ["down", "cy"], ["below"]),
            helper.make_node("Abs", ["right"], ["off x"]),
            helper.make_node("Abs", ["below"], ["off y"]),
            helper.make_node("Sub", ["w", "off x"], ["in x"]),
            helper.make_node("Sub", ["h", "off y"], ["in y"]),
            helper.make_node("Min", ["in x", "in y"], ["in"]),
            helper.make_node("Mul", ["in", "ten"], ["pred_masks"]),
        ]
    )
    shape = [1, 300, 80, 80]
    model.graph.output.append(make_tensor_value_info("pred_masks", TensorProto.FLOAT, shape))
    entries = {each.key: each.value for each in model.metadata_props} | {"task": "segment"}
    helper.set_model_props(model, entries)
    return model


@pytest.mark.parametrize("stripped", [False, True])
def test_masks_of_dfine_are_decoded(shared, stripped):
    model = with_masks(shared)
    if stripped:
        del model.metadata_props[:]
    told, _ = recognise_graph(model)
    assert (told.family, told.task) == ("rtdetr-raw-seg", "segment")
    file = File(shared, "libreyolo-dfine")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    head, spec = open_head(told, file.inputs), file.spec("rtdetr-raw")
    for pixels, rows in file.images.values():
        row = np.empty((1, *spec.row_shape), spec.dtype)
        where = Preprocessor(spec)(pixels, row[0])
        names = [each.name for each in session.get_outputs()]
        found = session.run(names, {file.inputs[0].name: row})
        inside = head.decode(dict(zip(names, found, strict=True)), 0, PredictOptions())
        columns = inside.to_source(where)
        columns = columns.boxes, columns.scores, columns.class_ids
        assert not unmatched(columns, rows, pixels.shape)
        for box, mask in zip(inside.boxes, inside.masks.bitmaps(), strict=True):
            # A mask reaches as far beyond the middle as its box is wide and high.
            centre, side = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
            want = np.clip(np.concatenate([centre - side, centre + side]), 0, 320)
            down, across = (np.flatnonzero(mask.pixels.any(axis=axis)) for axis in (1, 0))
            first, last = (np.add((mask.left, mask.top), (across[n], down[n])) for n in (0, -1))
            have = [*first, *(last + 1)]
            assert have == pytest.approx(want, abs=3)


def test_renamed_outputs_do_not_tell_the_preprocessing(shared, tmp_path):
    """D-FINE takes 0 to 1, and RF-DETR, whose names these are, mean and std."""
    names = {"pred_logits": "labels", "pred_boxes": "dets"}
    source = onnx.load(shared / "models" / "heads" / "libreyolo-dfine.onnx")
    told, _ = recognise_graph(rename(source, names).model)
    assert told.family is None
    assert "the metadata says dfine" in told.reason
    path = tmp_path / "renamed.onnx"
    onnx.save(strip_metadata(rename(source, names).model).model, path)
    plan = BuildPlan(path, "m", tmp_path / "r", family="rfdetr")
    told, _ = recognise_graph(onnx.load(path), "rfdetr")
    assert told.guessed.startswith("its outputs were renamed")
    card = build(plan)
    assert (card.preprocess.mean, card.preprocess.scale) == ((0, 0, 0), 1 / 255)
    assert card.preprocess_from.startswith("0-to-1, by what the model finds")


@pytest.fixture(scope="module", params=["dfine-bare", "hf-detr"])
def seen(request, shared):
    """A family's head and its outputs for a photograph."""
    file = File(shared, request.param)
    family = FILES[request.param]
    told = file.recognise()
    outputs, _ = file.run(next(iter(file.images.values()))[0], file.spec(family))
    return FAMILIES[family].open(told.outputs, (320, 320)), outputs


def spread(boxes):
    """As many boxes of a tenth of the image, all over it."""
    places = np.linspace(0.05, 0.95, boxes.shape[1], dtype=np.float32)
    return np.stack([places, places, 0 * places + 0.1, 0 * places + 0.1], axis=1)[None]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda boxes: boxes * 320, "no fractions"),
        (lambda boxes: np.add(boxes, [0, 0, 1, 1]), "no centres"),
    ],
    ids=["pixels", "corners"],
)
def test_boxes_of_another_form_are_excluded(seen, change, says):
    head, outputs = seen
    boxes = head.outputs[1]
    planted = spread(outputs[boxes])
    assert head.contradiction({**outputs, boxes: planted}) is None
    assert says in head.contradiction({**outputs, boxes: change(planted)})


def test_a_softmax_and_a_sigmoid_each_exclude_each_other():
    """In trained models most queries find nothing, and few are sure of a class."""
    rng = np.random.default_rng(3)
    boxes = spread(np.zeros((1, 300, 4)))
    sigmoid = rng.normal(-6, 1, (1, 300, 80)).astype(np.float32)
    sigmoid[0, np.arange(8), rng.integers(0, 80, 8)] = 2
    softmax = rng.normal(-3, 2, (1, 300, 92)).astype(np.float32)
    softmax[0, :, -1] = 8
    softmax[0, np.arange(8), rng.integers(0, 91, 8)] = 12
    raw, detr = (FAMILIES[name].open(("l", "b"), (320, 320)) for name in ("rtdetr-raw", "detr"))
    assert raw.contradiction({"l": sigmoid, "b": boxes}) is None
    assert 'not "none"' in detr.contradiction({"l": sigmoid, "b": boxes})
    assert detr.contradiction({"l": softmax, "b": boxes}) is None
    assert "sure of a class" in raw.contradiction({"l": softmax, "b": boxes})
    # Two classes of which the last is the likelier one can be a class and "none".
    two = np.stack([sigmoid[..., 0], sigmoid[..., 0] + 2], axis=2)
    assert raw.contradiction({"l": two, "b": boxes}) is None
    assert detr.contradiction({"l": two, "b": boxes}) is None
