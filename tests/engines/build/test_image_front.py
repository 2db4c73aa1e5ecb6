"""Images as they are decoded: the graph makes of them what the host would."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.engines.fake_images import through
from tests.engines.opened import Opened
from tests.engines.real import error, prepared, ranges, run

from fovea_engines.backends.backend import Encoding
from fovea_engines.evaluation.samples import image_files, read_image
from fovea_engines.heads.presets import PRESETS
from fovea_engines.heads.recognition import Recognition
from fovea_engines.onnx_graph.image_front import add_image_front
from fovea_engines.onnx_graph.tensors import graph_inputs, metadata_of
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import quantise
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec

pytestmark = pytest.mark.real

TENSORS = Recognition(None, "no detector", "tensors")
BACKENDS = pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
YOLO = PreprocessSpec(64, 96)
IMAGENET = replace(YOLO, **PRESETS["imagenet"])
SPECS = [
    YOLO,
    replace(YOLO, **PRESETS["yolox"]),
    IMAGENET,
    replace(IMAGENET, channels="BGR", layout="NHWC"),
    replace(YOLO, scale=1.0, mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375)),
    replace(YOLO, dtype="float16"),
    replace(IMAGENET, channels="BGR", layout="NHWC", dtype="float16"),
    replace(YOLO, scale=1.0, dtype="uint8"),
    replace(YOLO, scale=1.0, dtype="uint8", channels="BGR", layout="NHWC"),
    replace(YOLO, scale=1.0, dtype="int32", channels="BGR", layout="NHWC"),
]


@BACKENDS
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.channels}-{s.layout}-{s.dtype}")
def test_it_makes_what_the_host_makes(shared, tmp_path, backend, spec):
    files = image_files(shared / "data" / "coco64" / "val", 2)
    images = [read_image(file) for file in files]
    want = np.empty((2, *spec.row_shape), spec.dtype)
    for pixels, row in zip(images, want, strict=True):
        Preprocessor(spec)(pixels, row)
    graph = through(spec)
    bare = add_image_front(graph, spec)
    onnx.checker.check_model(graph, full_check=True)
    with Opened(graph, TENSORS, bare, backend, tmp_path / "engine", rows=2) as engine:
        have = engine.infer(*images)["row"]
    assert have.dtype == want.dtype
    if spec.whole:
        np.testing.assert_array_equal(have, want)
    # Of what is subtracted before it is divided; float16 is rounded once, from float32.
    step = 0 if spec.whole else np.finfo(spec.dtype).eps
    np.testing.assert_allclose(have, want, rtol=step, atol=4e-6 * np.abs(want).max())


def test_a_yolo_s_values_are_the_host_s_to_the_last_bit():
    for spec in (replace(YOLO, height=1, width=256), replace(YOLO, height=1, width=256, scale=1.0)):
        levels = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 256, 3)
        want = np.empty((1, *spec.row_shape), np.float32)
        Preprocessor(spec)(levels, want[0])
        graph = through(spec)
        add_image_front(graph, spec)
        [have] = run(graph, levels[None])
        np.testing.assert_array_equal(have, want)


def test_the_host_is_left_with_the_geometry():
    bare = add_image_front(through(IMAGENET), IMAGENET)
    assert bare == PreprocessSpec(
        64, 96, fit="center-crop", crop_ratio=256 / 224, scale=1.0, layout="NHWC", dtype="uint8"
    )
    padded = replace(YOLO, anchor="top-left", pad=7, max_scale=1.0)
    bare = add_image_front(through(padded), padded)
    assert (bare.anchor, bare.pad, bare.max_scale) == ("top-left", 7, 1.0)


def test_a_model_that_takes_such_images_is_left_alone():
    spec = replace(YOLO, scale=1.0, layout="NHWC", dtype="uint8")
    graph = through(spec)
    assert add_image_front(graph, spec) == spec
    assert graph == through(spec)


@pytest.mark.parametrize("precision", ["float16", "INT8"])
@pytest.mark.parametrize("name", ["yolox_nano", "mobilenetv2"])
def test_it_goes_before_any_precision(shared, name, precision):
    model = prepared(shared, name)
    if precision == "INT8":
        graph = to_half(quantise(model.graph, ranges(shared, name), Encoding.SIGNED))
    else:
        graph = to_half(model.graph)
    pixels = read_image(shared / "data" / "bus.jpg")
    row = np.empty((1, *model.preprocess.row_shape), np.float32)
    Preprocessor(model.preprocess)(pixels, row[0])
    want = run(graph, row)

    bare = add_image_front(graph, model.preprocess)
    onnx.checker.check_model(graph, full_check=True)
    levels = np.empty((1, *bare.row_shape), np.uint8)
    Preprocessor(bare)(pixels, levels[0])
    have = run(graph, levels)
    assert error(have[0], want[0]) < 1e-3


def test_name_batch_and_metadata_stay(shared):
    model = prepared(shared, "yolov8n")
    graph = onnx.ModelProto()
    graph.CopyFrom(model.graph)
    add_image_front(graph, model.preprocess)
    [image] = graph_inputs(graph)
    assert (image.name, image.dtype, image.shape) == ("images", "uint8", (-1, 640, 640, 3))
    assert metadata_of(graph) == model.metadata
