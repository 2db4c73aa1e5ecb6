"""Inputs beside the image, and images without a batch."""

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.engines.tiny import save

from fovea_engines.heads.image_inputs import source_feeds
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs
from fovea_preprocess.errors import UnsupportedModel

SIZE = (32, 64)


def with_second(path, name, shape, kind=TensorProto.INT64, batch="batch"):
    """Write a model that returns its second input, unchanged."""
    image = helper.make_tensor_value_info("images", 1, [batch, 3, "height", "width"])
    second, out = (helper.make_tensor_value_info(n, kind, shape) for n in (name, "out"))
    graph = helper.make_graph(
        [
            helper.make_node("Identity", [name], ["out"]),
            helper.make_node("Relu", ["images"], ["x"]),
        ],
        "two",
        [image, second],
        [out, helper.make_tensor_value_info("x", 1, [batch, 3, "height", "width"])],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return load(path).proto


def run(model, rows):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(["out"], {"images": np.zeros((rows, 3, *SIZE), np.float32)})[0]


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("orig_target_sizes", TensorProto.INT64, [64, 32]),
        ("im_shape", TensorProto.FLOAT, [32, 64]),
        ("image_shape", TensorProto.FLOAT, [32, 64]),
        ("scale_factor", TensorProto.FLOAT, [1, 1]),
    ],
)
@pytest.mark.parametrize(("batch", "rows"), [("batch", 3), (1, 1), (2, 2)])
def test_the_size_of_the_input_is_filled_in(tmp_path, name, kind, value, batch, rows):
    model = normalise(with_second(tmp_path / "m.onnx", name, [batch, 2], kind, batch), SIZE)
    assert [spec.name for spec in graph_inputs(model)] == ["images"]
    np.testing.assert_array_equal(run(model, rows), [value] * rows)


def test_every_pixel_counts(tmp_path):
    shape = ["batch", "height", "width"]
    model = normalise(with_second(tmp_path / "m.onnx", "pixel_mask", shape), SIZE)
    np.testing.assert_array_equal(run(model, 2), np.ones((2, *SIZE)))


@pytest.mark.parametrize(
    ("name", "shape", "kind", "says"),
    [
        ("image_size", [1, 2], TensorProto.INT64, "2 inputs must be fed"),
        ("im_shape", [2], TensorProto.FLOAT, "2 inputs must be fed"),
        ("im_shape", [1, 2], TensorProto.BOOL, "2 inputs must be fed"),
        ("im_shape", [1, 3], TensorProto.FLOAT, r"'im_shape' of shape \[1, 3\] is not for"),
        ("pixel_mask", [1, 64, 64], TensorProto.INT64, "image of 32x64: build with another --size"),
    ],
)
def test_what_has_another_meaning_is_not_filled_in(tmp_path, name, shape, kind, says):
    with pytest.raises(UnsupportedModel, match=says):
        normalise(with_second(tmp_path / "m.onnx", name, shape, kind), SIZE)


@pytest.mark.parametrize("shape", [[3, *SIZE], [3, "height", "width"], [*SIZE, 3]])
def test_an_image_without_a_batch_gets_one_of_1(tmp_path, shape):
    relu = helper.make_node("Relu", ["images"], ["out"])
    path = save(tmp_path / "m.onnx", [relu], [("images", shape)], [("out", shape)])
    model = normalise(load(path).proto, SIZE)
    [image] = graph_inputs(model)
    rows = np.arange(np.prod(image.shape), dtype=np.float32).reshape(image.shape) - 9
    session = onnxruntime.InferenceSession(model.SerializeToString())
    [found] = session.run(None, {"images": rows})
    assert image.shape[0] == 1
    np.testing.assert_array_equal(found, np.maximum(rows[0], 0))


@pytest.mark.parametrize("factor", [2, 4])
def test_the_image_enlarged_is_filled_in(tmp_path, factor):
    large = [1, 3, factor * SIZE[0], factor * SIZE[1]]
    nodes = [
        helper.make_node("Identity", ["1"], ["out"]),
        helper.make_node("Relu", ["0"], ["x"]),
    ]
    # The enlarged one is first, as Open Model Zoo has it.
    inputs = [("1", large), ("0", [1, 3, *SIZE])]
    save(tmp_path / "m.onnx", nodes, inputs, [("out", large), ("x", [1, 3, *SIZE])], [])
    model = normalise(load(tmp_path / "m.onnx").proto)
    assert [spec.name for spec in graph_inputs(model)] == ["0"]
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    row = pixels.transpose(2, 0, 1)[None].astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    want = cv2.resize(pixels, large[:1:-1], interpolation=cv2.INTER_CUBIC)
    off = np.abs(session.run(["out"], {"0": row})[0][0].transpose(1, 2, 0) - want)
    # Halves are rounded down or up, as sums of floats have it.
    assert off.max() <= 1
    assert (off > 0).mean() < 1e-3
    by_hand = source_feeds(graph_inputs(load(tmp_path / "m.onnx").proto), row)["1"]
    np.testing.assert_array_equal(by_hand[0].transpose(1, 2, 0), want)


def test_two_images_of_one_size_are_refused(tmp_path):
    inputs = [(name, [1, 3, *SIZE]) for name in ("left", "right")]
    nodes = [helper.make_node("Add", ["left", "right"], ["out"])]
    save(tmp_path / "m.onnx", nodes, inputs, [("out", [1, 3, *SIZE])], [])
    with pytest.raises(UnsupportedModel, match="2 inputs must be fed"):
        normalise(load(tmp_path / "m.onnx").proto)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_of_grey_images_takes_colour(tmp_path, channels):
    nodes = [helper.make_node("Concat", ["images"] * channels, ["out"], axis=1)]
    shape = ["batch", channels, *SIZE]
    save(tmp_path / "m.onnx", nodes, [("images", ["batch", 1, *SIZE])], [("out", shape)], [])
    model = normalise(load(tmp_path / "m.onnx").proto)
    assert graph_inputs(model)[0].shape == (-1, 3, *SIZE)
    rows = np.random.default_rng(0).uniform(0, 255, (2, 3, *SIZE)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    [found] = session.run(["out"], {"images": rows})
    for row, have in zip(rows, found, strict=True):
        want = cv2.cvtColor(row.transpose(1, 2, 0), cv2.COLOR_RGB2GRAY)
        np.testing.assert_allclose(have, [want] * channels, atol=1e-3)
    feeds = source_feeds(graph_inputs(load(tmp_path / "m.onnx").proto), rows)
    np.testing.assert_allclose(feeds["images"], found[:, :1], atol=1e-3)
