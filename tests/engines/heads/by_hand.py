"""Outputs written by hand, as exporters document them, and what is said of a model of these."""

import numpy as np
import pytest

from fovea_engines.heads.recognise import recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.session import TensorSpec

HEIGHT, WIDTH = 320, 640
BOXES = [[20, 40, 200, 300], [500, 10, 630, 150]]  # x1 y1 x2 y2; the second only lies in 640x320
SCORES = [0.875, 0.5]
CLASSES = [2, 7]


def told(outputs, metadata=None, family=None, size=(HEIGHT, WIDTH)):
    """Recognise a model that has these outputs for an image."""
    inputs = [TensorSpec("image", "float32", (-1, 3, *size))]
    specs = [
        TensorSpec(name, str(array.dtype), (-1, *array.shape[1:]))
        for name, array in outputs.items()
    ]
    return recognise(inputs, specs, metadata or {}, family, observe=lambda _: [outputs])


def opened(recognition, size=(HEIGHT, WIDTH)):
    known = recognition.num_classes, recognition.skeleton
    return FAMILIES[recognition.family].open(recognition.outputs, size, *known)


def excluded(recognition, family):
    """Return the reason for which the numbers exclude a family that fits the outputs."""
    against = {verdict.family: verdict.against for verdict in recognition.verdicts if verdict.fit}
    return against[family]


def assert_found(found, class_ids=CLASSES):
    assert found.boxes == pytest.approx(np.array(BOXES), abs=1e-3)
    assert found.scores.tolist() == SCORES
    assert found.class_ids.tolist() == list(class_ids)


def filled(values, rows, dtype=np.float32):
    """Values of one image as [1, rows, ...], with zeros after them."""
    array = np.zeros((1, rows, *np.shape(values)[1:]), dtype)
    array[0, : len(values)] = values
    return array
