"""`diff` of models that compute NaN: where both do, nothing is known."""

import cv2
import numpy as np
import pytest
from tests.engines.fragile import broken
from tests.engines.tiny import tiny_network

from fovea_engines.inspect.describe import verdict
from fovea_engines.inspect.diff import diff


@pytest.fixture
def images(tmp_path):
    """A folder of a bright image and a black one."""
    folder = tmp_path / "images"
    folder.mkdir()
    cv2.imwrite(str(folder / "a.png"), np.full((64, 64, 3), 200, np.uint8))
    cv2.imwrite(str(folder / "b.png"), np.zeros((64, 64, 3), np.uint8))
    return folder


def test_nan_in_both_is_no_agreement(tmp_path, images):
    source = broken(tiny_network(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    found = diff(source, source, images)
    assert found.first is None
    assert not found.agrees
    assert "out, which A puts out, was not judged" in verdict(found)
    assert "NaN in both" in verdict(found)
    (images / "b.png").unlink()
    assert diff(source, source, images).agrees


def test_nan_in_one_diverges(tmp_path, images):
    source = tiny_network(tmp_path / "m.onnx")
    other = broken(source, tmp_path / "other.onnx")
    found = diff(source, other, images)
    assert not found.agrees
    assert "NaN or infinite in one of them only" in verdict(found)
