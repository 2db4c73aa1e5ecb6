"""DETR, and RT-DETR and its kin without post-processing, on the files of their exporters."""

import numpy as np
import pytest
from tests.engines.detect.heads.expected import File

from fovea_engines.detect.heads.registry import FAMILIES

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
