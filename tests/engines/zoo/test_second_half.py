"""The other collected detectors, and the collected models of other tasks."""

import numpy as np
import pytest
from tests.engines.zoo import cases
from tests.engines.zoo.checks import Checks, folder_of
from tests.engines.zoo.rows import plainly

from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image
from fovea_preprocess.preprocessor import Preprocessor

pytestmark = [pytest.mark.real, pytest.mark.slow]


class TestDetectors(Checks):
    detectors = cases.SECOND


@pytest.mark.skipif(not cases.FILES, reason="the collected models are absent")
@pytest.mark.parametrize(("other", "backend"), cases.in_backends(cases.OTHERS))
def test_outputs_are_those_of_the_source(built, bus, other, backend):
    """Served as tensors, it gives what plain ONNX Runtime gives."""
    pixels = read_image(bus / "bus.jpg")
    with Engine.open(folder_of(built(other, backend))) as engine:
        spec = engine.card.preprocess
        row = np.empty((1, *spec.row_shape), spec.dtype)
        Preprocessor(spec)(pixels, row[0])
        found = engine.outputs_of(pixels)
    wanted = plainly(other, row)
    assert found.keys() == wanted.keys()
    for output, want in wanted.items():
        have = found[output]
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        if other in cases.RANKED:
            want, have = np.sort(want, axis=None), np.sort(have, axis=None)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, atol=1e-3 * np.abs(want).max(initial=1e-3))
        else:
            assert (have != want).mean() < 0.001
