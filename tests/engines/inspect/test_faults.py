"""`diff` on real models: it finds what was planted, and nothing where nothing was."""

import shutil

import onnx
import pytest
from tests.engines.sabotage import scale_weight, scramble, swap_activation

from fovea_engines.inspect.diff import diff
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.quantization.half import to_half

pytestmark = [pytest.mark.real, pytest.mark.slow]

SWAPPED = {
    "yolov5n": ("Sigmoid", "HardSigmoid"),
    "yolox_nano": ("Sigmoid", "HardSigmoid"),
    "mobilenetv2": ("Clip", "LeakyRelu"),
}


@pytest.fixture(scope="module")
def bus(shared, tmp_path_factory):
    """A folder with one image: what is wrong is so on any."""
    folder = tmp_path_factory.mktemp("images")
    shutil.copy(shared / "data" / "bus.jpg", folder)
    return folder


@pytest.mark.parametrize("name", SWAPPED)
@pytest.mark.parametrize("fault", ["weight", "activation"])
@pytest.mark.parametrize("scrambled", [False, True], ids=["named", "scrambled"])
def test_a_planted_fault_is_the_first_divergent_tensor(
    shared, bus, tmp_path, name, fault, scrambled
):
    source = shared / "models" / f"{name}.onnx"
    model = onnx.load(source)
    if fault == "weight":
        wrong, says = scale_weight(model, 20), "is 1.5 times A's"
    else:
        op, other = SWAPPED[name]
        wrong, says = swap_activation(model, 15, op, other), f"{op}, but B computes {other}"
    there = scramble(model)[wrong] if scrambled else wrong
    onnx.save(model, tmp_path / "wrong.onnx")
    found = diff(source, tmp_path / "wrong.onnx", bus)
    assert (found.first.a.name, found.first.b.name) == (wrong, there)
    assert says in " ".join(found.causes)
    assert found.first.inputs_snr_db == float("inf")
    assert not found.agrees
    assert {one.by for one in found.layers} == {"order" if scrambled else "name"}
    assert not found.unmatched_a


@pytest.mark.parametrize("name", ["yolov5n", "mobilenetv2", "yolov10n"])
def test_no_alarm_for_the_same_network_in_another_form(shared, bus, tmp_path, name):
    source = shared / "models" / f"{name}.onnx"
    normal = normalise(load(source).proto)
    half = to_half(normal)
    for model, precision in ((normal, "fp32"), (half, "fp16")):
        scramble(model)
        onnx.save(model, tmp_path / "other.onnx")
        found = diff(source, tmp_path / "other.onnx", bus)
        assert found.precision_b == precision
        assert found.first is None, (found.first, found.causes)
        # In float16 yolov10n picks other boxes of close scores: then its output is not judged.
        assert found.agrees or (name, precision) == ("yolov10n", "fp16")
        # onnxslim has removed a handful of layers at most.
        assert len(found.unmatched_a) <= 5
        assert not found.unmatched_b


def test_a_fault_in_a_float16_file_stands_out_of_the_rounding(shared, bus, tmp_path):
    source = shared / "models" / "yolov5n.onnx"
    half = to_half(normalise(load(source).proto))
    wrong = scale_weight(half, 30)
    onnx.save(half, tmp_path / "half.onnx")
    found = diff(source, tmp_path / "half.onnx", bus)
    assert found.first.a.name == wrong
    assert 40 < found.first.inputs_snr_db < 100
    assert "is 1.5 times A's" in found.causes[0]
