"""Each rule of TensorRT for quantised graphs, broken once; `test_rtx.py` asks TensorRT itself."""

import re

import numpy as np
import onnx
import pytest
from tests.engines.faults import FAULTS, convolution

from fovea_engines.quantization.quantisation import validate
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(tmp_path, fault):
    changes, sentence = FAULTS[fault]
    with pytest.raises(UnsupportedModel, match=f"TensorRT cannot take.*{re.escape(sentence)}"):
        validate(convolution(tmp_path / "m.onnx", **changes))


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"op": "ConvTranspose", "axis": 1},
        {"op": "MatMul", "axis": 1},
        {"op": "Gemm", "axis": 1},
    ],
)
def test_what_is_right_passes(tmp_path, right):
    validate(convolution(tmp_path / "m.onnx", **right))


def test_a_graph_without_pairs_passes(network):
    validate(onnx.load(network))


def test_many_faults_are_counted_and_few_are_shown(tmp_path):
    changes = {"zero": np.uint8(128), "bias": True, "axis": 1, "after": True}
    with pytest.raises(UnsupportedModel) as refused:
        validate(convolution(tmp_path / "m.onnx", **changes))
    assert str(refused.value).count(";") == 2
    assert str(refused.value).endswith("(5 faults in all)")
