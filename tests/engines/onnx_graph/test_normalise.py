"""Normalising: sizes, batches, inputs beside the image, and shapes of outputs."""

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.engines.real import run
from tests.engines.tiny import METADATA, constant, save, tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.image_inputs import source_feeds
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import normalise, open_size
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

IMAGE = ("images", [1, 3, 8, 8])


def relu(source: str = "images") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], ["out"])


def test_size_is_fixed_and_the_batch_stays_dynamic(tmp_path):
    path = tiny_detector(tmp_path / "m.onnx", size=("h", "w"), opset=13)
    model = normalise(load(path).proto, (64, 96))
    assert graph_inputs(model)[0].shape == (-1, 3, 64, 96)
    assert graph_outputs(model)[0].shape == (-1, 7, 126)
    assert model.opset_import[0].version >= 19
    assert metadata_of(model) == METADATA
    assert not model.graph.value_info
    onnxruntime.InferenceSession(model.SerializeToString())


@pytest.mark.parametrize(
    ("metadata", "size"), [({}, 640), ({"imgsz": "[96, 96]"}, 96), ({"imgsz": "32"}, 32)]
)
def test_a_size_is_found_where_none_is_given(tmp_path, metadata, size):
    path = tiny_detector(tmp_path / "m.onnx", size=("h", "w"), metadata=metadata)
    assert graph_inputs(normalise(load(path).proto))[0].shape == (-1, 3, size, size)


def test_a_size_the_model_cannot_take_is_refused(tiny_model, tmp_path):
    with pytest.raises(InvalidOption, match="64x64"):
        normalise(load(tiny_model).proto, (96, 96))
    path = tiny_detector(tmp_path / "m.onnx", size=("h", "w"))
    with pytest.raises(InvalidOption, match="32"):
        normalise(load(path).proto, (100, 100))


def test_several_inputs_are_named(tmp_path):
    add = helper.make_node("Add", ["images", "mask"], ["out"])
    path = save(tmp_path / "m.onnx", [add], [IMAGE, ("mask", [1, 3, 8, 8])], [("out", IMAGE[1])])
    with pytest.raises(UnsupportedModel, match="'mask'"):
        normalise(load(path).proto)


@pytest.mark.parametrize("shape", [[1, 16], [1, 4, 8, 8], [4, 8, 8], [1, 2, 8, 8]])
def test_an_input_that_is_no_image_is_refused(tmp_path, shape):
    path = save(tmp_path / "m.onnx", [relu()], [("images", shape)], [("out", shape)])
    with pytest.raises(UnsupportedModel, match="images"):
        normalise(load(path).proto)


@pytest.mark.parametrize(("opset", "mode"), [(9, "linear"), (9, "nearest"), (10, "linear")])
def test_old_resizing_keeps_its_places(tmp_path, opset, mode):
    operator = "Upsample" if opset == 9 else "Resize"
    nodes = [helper.make_node(operator, ["images", "scales"], ["out"], mode=mode)]
    scales = constant("scales", np.float32([1, 1, 1.5, 2]))
    shapes = [IMAGE], [("out", [1, 3, 12, 16])]
    path = save(tmp_path / "m.onnx", nodes, *shapes, [scales], opset=opset)
    row = np.random.default_rng(0).normal(size=IMAGE[1]).astype(np.float32)
    [want], [have] = (run(model, row) for model in (onnx.load(path), normalise(load(path).proto)))
    np.testing.assert_allclose(have, want, atol=1e-6)


def shaped(path, nodes, kind=TensorProto.FLOAT):
    weights = [
        constant("zero", np.float32(0)),
        constant("flat", np.array([-1, 192])),
        constant("fixed", np.array([1, -1, 192])),
    ]
    image = helper.make_tensor_value_info("images", 1, ["batch", 3, 8, 8])
    out = helper.make_tensor_value_info("out", kind, ["rows", "columns"])
    graph = helper.make_graph(nodes, "shapes", [image], [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def bright(path):
    """Write a model that returns the place of each positive value: [k, 4], from any image."""
    nodes = [
        helper.make_node("Greater", ["images", "zero"], ["lit"]),
        helper.make_node("NonZero", ["lit"], ["places"]),
        helper.make_node("Transpose", ["places"], ["out"], perm=[1, 0]),
    ]
    return shaped(path, nodes, TensorProto.INT64)


def test_a_dimension_that_is_the_same_for_any_batch_is_known(tmp_path):
    path = shaped(tmp_path / "m.onnx", [helper.make_node("Reshape", ["images", "flat"], ["out"])])
    [out] = graph_outputs(normalise(load(path).proto))
    assert out.shape == (-1, 192)


def test_rows_of_all_images_together_are_served_one_image_at_a_time(tmp_path):
    notes = []
    model = normalise(load(bright(tmp_path / "m.onnx")).proto, note=notes.append)
    assert graph_inputs(model)[0].shape == (1, 3, 8, 8)
    assert graph_outputs(model)[0].shape == (-1, 4)
    assert "one image at a time, because output out" in notes[0]
    with pytest.raises(InvalidOption, match="--max-batch"):
        build(BuildPlan(tmp_path / "m.onnx", "m", tmp_path / "r", max_batch=4))


def test_a_batch_that_the_exporter_wrote_down_is_no_batch(tmp_path):
    nodes = [helper.make_node("Reshape", ["images", "fixed"], ["out"])]
    model = normalise(load(shaped(tmp_path / "m.onnx", nodes)).proto)
    assert graph_inputs(model)[0].shape == (1, 3, 8, 8)
    assert graph_outputs(model)[0].shape == (1, 1, 192)


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


def answers(model, rows):
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
    np.testing.assert_array_equal(answers(model, rows), [value] * rows)


def test_every_pixel_counts(tmp_path):
    shape = ["batch", "height", "width"]
    model = normalise(with_second(tmp_path / "m.onnx", "pixel_mask", shape), SIZE)
    np.testing.assert_array_equal(answers(model, 2), np.ones((2, *SIZE)))


@pytest.mark.parametrize(
    ("name", "shape", "kind", "says"),
    [
        ("image_size", [1, 2], TensorProto.INT64, "2 inputs need data"),
        ("im_shape", [2], TensorProto.FLOAT, "2 inputs need data"),
        ("im_shape", [1, 2], TensorProto.BOOL, "2 inputs need data"),
        ("im_shape", [1, 3], TensorProto.FLOAT, r"'im_shape' of shape \[1, 3\] does not fit"),
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


@pytest.mark.parametrize(
    ("batch", "rows", "size"),
    [
        ("n", ["n", 7], "224x224"),
        ("n", ["n", 6], "224x224"),
        (1, [1, 7], "224x224"),
        ("n", ["boxes", 7], "640x640"),
        (1, ["boxes", 6], "640x640"),
        ("n", [None, 6], "640x640"),
        (None, [None, 7], "640x640"),
        ("n", ["m", 1000], "224x224"),
    ],
)
def test_rows_of_images_are_told_from_rows_of_boxes(batch, rows, size):
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, "h", "w"])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, rows)
    model = helper.make_model(helper.make_graph([], "graph", [image], [output]))
    assert open_size(onnx.load_from_string(model.SerializeToString())) == size
