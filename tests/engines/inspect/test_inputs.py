"""What two models are fed to be compared, and what of the answer counts."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.engines.tiny import constant, save, tiny_detector

from fovea_engines.inspect.describe import verdict
from fovea_engines.inspect.diff import diff
from fovea_preprocess.errors import InvalidOption, NotFound, UnsupportedModel

KERNEL = np.random.default_rng(1).normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


def one_conv(path, kernel=KERNEL, size=16, batch=1, nodes=(), output=("out", [1, 4, 14, 14])):
    nodes = [node("Conv", "images kernel", "out" if not nodes else "c"), *nodes]
    weights = [constant("kernel", kernel), constant("k", np.array([2]))]
    return save(path, nodes, [("images", [batch, 3, size, size])], [output], weights)


def test_either_model_may_take_any_size(tmp_path):
    fixed = tiny_detector(tmp_path / "fixed.onnx")
    free = tiny_detector(tmp_path / "free.onnx", size=("h", "w"))
    for one, other in ((fixed, free), (free, fixed)):
        found = diff(one, other)
        assert found.agrees
        assert found.layers[0].a.shape == (1, 3, 64, 64)
        assert found.images == ("astronaut.jpg", "chelsea.jpg", "coffee.jpg")


def test_a_file_of_any_size_takes_that_of_the_other(tmp_path):
    """Without a batch dimension, as torchvision exports its detectors."""
    nodes = [node("Unsqueeze", "image first", "images"), node("Conv", "images kernel", "out")]
    weights = [constant("kernel", KERNEL), constant("first", np.array([0]))]

    def write(file, height, width):
        inputs, outputs = [("image", [3, height, width])], [("out", [1, 4, None, None])]
        return save(tmp_path / file, nodes, inputs, outputs, weights)

    free, fixed = write("free.onnx", "h", "w"), write("fixed.onnx", 32, 48)
    for one, other in ((free, fixed), (fixed, free)):
        found = diff(one, other)
        assert found.agrees
        assert found.layers[0].a.shape == (1, 3, 32, 48)


def test_a_fixed_batch_is_filled(tmp_path):
    found = diff(one_conv(tmp_path / "a.onnx", batch=4), one_conv(tmp_path / "b.onnx", batch="n"))
    assert found.layers[0].a.shape == (4, 3, 16, 16)
    assert found.agrees


def test_each_is_fed_in_its_own_layout(tmp_path):
    front = [
        node("Cast", "bytes", "float", to=TensorProto.FLOAT),
        node("Mul", "float scale", "unit"),
        node("Transpose", "unit", "images", perm=[0, 3, 1, 2]),
    ]
    model = onnx.load(one_conv(tmp_path / "a.onnx"))
    nodes = [*front, *model.graph.node]
    weights = [constant("kernel", KERNEL), constant("scale", np.float32(1 / 255))]
    path = save(
        tmp_path / "b.onnx", nodes, [("bytes", [1, 16, 16, 3])], [("out", [1, 4, 14, 14])], weights
    )
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(model, path)
    found = diff(tmp_path / "a.onnx", path)
    assert found.agrees
    assert [(one.a.name, one.b.name) for one in found.layers] == [("out", "out")]


def test_what_takes_no_images_is_fed_random_numbers(tmp_path):
    def path(name, weight):
        nodes = [node("MatMul", "row weight", "out")]
        return save(
            tmp_path / name, nodes, [("row", ["n", 5])], [("out", ["n", 2])],
            [constant("weight", weight)],
        )  # fmt: skip

    weight = np.arange(10, dtype=np.float32).reshape(5, 2)
    found = diff(path("a.onnx", weight), path("b.onnx", weight * 2))
    assert found.images[0] == "random numbers 1"
    assert found.causes == ("its weight is 2 times A's",)


def test_picks_that_rounding_swaps_are_no_divergence(tmp_path):
    twins = KERNEL.copy()
    twins[1] = twins[0] * np.float32(1 + 1e-5)
    swapped = twins.copy()
    swapped[1] = twins[0] * np.float32(1 - 1e-5)
    picking = [
        node("GlobalAveragePool", "c", "mean"),
        node("TopK", "mean k", "best which", axis=1),
        node("Cast", "which", "out", to=TensorProto.FLOAT),
    ]
    a, b = (
        one_conv(tmp_path / name, kernel, nodes=picking, output=("out", [1, 2, 1, 1]))
        for name, kernel in (("a.onnx", twins), ("b.onnx", swapped))
    )
    found = diff(a, b)
    states = {one.a.name: one.state for one in found.layers}
    assert found.first is None
    assert (states["which"], states["out"]) == ("other picks", "not judged")
    assert "which (TopK) selects other elements" in verdict(found)
    # The output is one of those that were not judged.
    assert not found.agrees
    assert "out, an output of A, was not compared: it is unknown whether the models agree" in (
        verdict(found)
    )


def test_error_that_grows_is_not_blamed_on_one_layer(tmp_path):
    def path(name, factor):
        nodes = [
            node("Mul", f"{'images' if i == 0 else f't{i - 1}'} factor", f"t{i}") for i in range(12)
        ]
        return save(
            tmp_path / name, nodes, [("images", [1, 3, 16, 16])], [("t11", [1, 3, 16, 16])],
            [constant("factor", np.float32(factor))],
        )  # fmt: skip

    found = diff(path("a.onnx", 1.0), path("b.onnx", 1.0003))
    assert found.first.a.name == "t3"  # 1.0003^4 - 1 = .0012: 58 dB
    assert not found.first.is_jump
    assert "The error grew layer by layer" in verdict(found)
    assert diff(path("a.onnx", 1.0), path("b.onnx", 1.0003), threshold_db=40).agrees


def test_models_that_cannot_be_compared_are_refused(tmp_path):
    a = one_conv(tmp_path / "a.onnx")
    shape = [1, 3, 16, 16]
    inputs = [("images", shape), ("more", shape)]
    two = save(tmp_path / "2.onnx", [node("Add", "images more", "out")], inputs, [("out", shape)])
    tanh = [node("Tanh", "images", "tanh")]
    other = save(tmp_path / "other.onnx", tanh, inputs[:1], [("tanh", shape)])
    any_row = [("row", ["n", "m"])]
    row = save(tmp_path / "row.onnx", [node("Relu", "row", "out")], any_row, [("out", ["n", "m"])])
    for b, error, says in (
        (
            one_conv(tmp_path / "big.onnx", size=32),
            InvalidOption,
            "is 16 in the first model, but 32",
        ),
        (two, InvalidOption, "has 1 input, but .* 2"),
        (other, InvalidOption, "no layer of"),
        (tmp_path / "absent.onnx", NotFound, "absent.onnx does not exist"),
        (tmp_path, NotFound, "no model"),
    ):
        with pytest.raises(error, match=says):
            diff(a, b)
    with pytest.raises(UnsupportedModel):
        diff(row, row)


def test_an_output_without_a_counterpart_is_no_agreement(tmp_path):
    a = one_conv(tmp_path / "a.onnx", nodes=[node("Softplus", "c", "out")])
    b = one_conv(
        tmp_path / "b.onnx", nodes=[node("Flatten", "c", "flat")], output=("flat", [1, 784])
    )
    found = diff(a, b)
    assert found.first is None
    assert not found.agrees
    assert "output out of A has no counterpart in B" in verdict(found)
