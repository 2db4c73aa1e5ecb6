"""RT-DETR and its kin with post-processing in the graph, on the files of their exporters."""

import numpy as np
import pytest
from tests.engines.heads.expected import File

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", ["rtdetrv2", "dfine", "rtdetr-clothes"])
def test_rows_are_those_of_the_family(shared, name):
    file = File(shared, name)
    assert file.recognise().family == "rtdetr"
    file.assert_expected(trained={"resample": "linear"} if name == "rtdetr-clothes" else None)


@pytest.fixture(scope="module")
def seen(shared):
    """The head and its outputs for the bus."""
    file = File(shared, "rtdetr-clothes")
    outputs, _ = file.run(file.images["bus.jpg"][0], file.spec("rtdetr"))
    return open_head(file.recognise(), file.inputs), outputs


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("boxes", lambda boxes: boxes / 416, "no pixels"),
        ("boxes", lambda boxes: boxes[..., [2, 3, 0, 1]], "no corners"),
        ("scores", lambda scores: scores * 100, "no probability"),
        ("scores", lambda scores: scores - 3, "no probability"),
        ("labels", lambda labels: labels - 5, "no class ids"),
    ],
)
def test_numbers_of_another_form_are_excluded(seen, name, change, says):
    head, outputs = seen
    assert head.contradiction(outputs) is None
    assert says in head.contradiction({**outputs, name: change(outputs[name])})


def test_images_without_objects_exclude_nothing(seen):
    head, outputs = seen
    assert head.contradiction({name: value * 0 for name, value in outputs.items()}) is None
    none = {name: value[:, :0] for name, value in outputs.items()}
    assert head.contradiction(none) is None
    assert len(head.decode(none, 0, PredictOptions())) == 0


def test_broken_numbers_give_no_boxes(seen):
    head, outputs = seen
    for name in ("boxes", "scores"):
        for bad in (np.nan, np.inf, -np.inf):
            broken = {**outputs, name: np.full_like(outputs[name], bad)}
            assert len(head.decode(broken, 0, PredictOptions(conf=0))) == 0
    negative = {**outputs, "labels": outputs["labels"] * 0 - 1}
    assert len(head.decode(negative, 0, PredictOptions(conf=0))) == 0


def test_outputs_in_any_order_and_in_half_precision(seen):
    head, outputs = seen
    half = {
        name: v.astype("float16" if v.dtype == "float32" else "int32")
        for name, v in outputs.items()
    }
    found, rounded = (head.decode(each, 0, PredictOptions()) for each in (outputs, half))
    assert found.class_ids.tolist() == rounded.class_ids.tolist()
    assert rounded.boxes == pytest.approx(found.boxes, abs=0.2)
    specs = [TensorSpec(n, v.dtype.name, (-1, *v.shape[1:])) for n, v in reversed(half.items())]
    told = recognise([TensorSpec("images", "float32", (-1, 3, 416, 416))], specs, {})
    assert told.outputs == ("boxes", "scores", "labels")


@pytest.mark.parametrize(
    ("labels", "boxes", "scores"),
    [
        (("int64", (-1,)), ("float32", (-1, 4)), ("float32", (-1,))),
        (("float32", (1, 9)), ("float32", (1, 9, 4)), ("float32", (1, 9))),
    ],
    ids=["torchvision", "labels that are floats"],
)
def test_other_models_are_left_alone(labels, boxes, scores):
    outputs = {"labels": labels, "boxes": boxes, "scores": scores}
    image = [TensorSpec("images", "float32", (-1, 3, 416, 416))]
    told = recognise(image, [TensorSpec(name, *spec) for name, spec in outputs.items()], {})
    assert "rtdetr" not in [verdict.family for verdict in told.verdicts if verdict.fit]
