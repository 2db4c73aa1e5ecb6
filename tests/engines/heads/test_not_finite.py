"""Numbers that a head reads, of real models of every task: one that is none is seen."""

import numpy as np
import pytest
from tests.engines.heads.expected import File

from fovea_engines.heads.base import is_sound
from fovea_engines.heads.end_to_end import YoloV10
from fovea_engines.heads.four_tensors import EfficientNms
from fovea_engines.heads.recognise import open_head
from fovea_engines.heads.suppressed import Suppressed

pytestmark = pytest.mark.real

# Each has another task, or another way to be read; small ones, as each is run.
FILES = (
    "ultraface-rfb-320",
    "yolo11-cls",
    "yolo11-seg",
    "yolo26-depth",
    "hf-segformer",
    "yolo11-obb",
    "nanodet-m-416",
    "mmdeploy",
    "paddle",
    "yolonas-flat",
    "rfdetr-seg",
    "efficientnms",
)


@pytest.mark.parametrize("name", FILES)
def test_a_number_that_is_none_is_seen_in_each_output(shared, name):
    file = File(shared, name)
    told = file.recognise()
    head = open_head(told, file.inputs)
    pixels = next(iter(file.images.values()))[0]
    outputs, _ = file.run(pixels, file.spec(told.family))
    assert head.unsound(outputs, 0) is None
    floats = [name for name in head.outputs if outputs[name].dtype.kind == "f"]
    assert floats
    for output in floats:
        for bad in (np.nan, np.inf):
            array = outputs[output].copy()
            # The first row of what is ranked is none of padding.
            array.reshape(-1)[array.size // 2 if not isinstance(head, Suppressed) else 0] = bad
            assert head.unsound(outputs | {output: array}, 0) is not None, output


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_minus_infinity_is_a_score_of_none_beside_others(dtype):
    numbers = np.array([[3, -np.inf], [0, 1]], dtype)
    assert is_sound(numbers)
    assert is_sound(numbers[:, :0])
    assert is_sound(numbers.T)
    assert not is_sound(np.full(3, -np.inf, dtype))
    for bad in (np.nan, -np.nan, np.inf):
        for at in range(4):
            broken = numbers.copy()
            broken.reshape(-1)[at] = bad
            assert not is_sound(broken)
            assert not is_sound(broken[:, ::-1])
    assert is_sound(np.arange(3))
    assert not is_sound(np.array(np.nan, dtype))


def test_padding_may_be_anything():
    """Rows that a plugin leaves undefined, behind those that it counts, and rows of no score."""
    rows = np.array([[[0, 0, 9, 9, 0.9, 1], [np.nan] * 4 + [0, 0], [0] * 4 + [-np.inf, 0]]])
    assert YoloV10(("o",)).unsound({"o": rows}, 0) is None
    assert YoloV10(("o",)).unsound({"o": rows * np.nan}, 0) == "output o"
    boxes, scores = np.full((1, 3, 4), np.nan), np.full((1, 3), np.nan)
    boxes[0, 0], scores[0, 0] = [0, 0, 9, 9], 0.9
    outputs = {"b": boxes, "s": scores, "c": np.zeros((1, 3), int), "n": np.array([[1.0]])}
    head = EfficientNms(("b", "s", "c", "n"))
    assert head.unsound(outputs, 0) is None
    assert head.unsound(outputs | {"n": np.array([[2.0]])}, 0) == "output b"
    assert head.unsound(outputs | {"n": np.array([[np.nan]])}, 0) == "output n"
    assert head.unsound(outputs | {"s": scores * np.nan}, 0) == "s"
