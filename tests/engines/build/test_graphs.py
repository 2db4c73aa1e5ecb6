"""Image front and NMS tail in the graph: it makes of images, and finds, what the host would."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.drawn import draw
from tests.engines.host_kernel import through
from tests.engines.opened import Opened, assert_identical
from tests.engines.real import bus, error, prepared, ranges, run

from fovea_engines.backends.backend import Encoding
from fovea_engines.backends.registry import CPU_BACKENDS
from fovea_engines.build import graphs
from fovea_engines.build.acceptance import check_fused
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import image_files, read_image
from fovea_engines.heads.nms_tail import add_nms_tail
from fovea_engines.heads.presets import PRESETS
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.recognition import Recognition
from fovea_engines.onnx_graph.image_front import add_image_front
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import quantise
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import Disagreement, UnsupportedModel
from fovea_preprocess.letterbox import fit
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "backend", "images"),
    [
        ("yolov8n", "openvino", 16),
        ("yolov5n", "openvino", 64),
        ("yolox_nano", "openvino", 16),
        ("yolox_nano", "onnxruntime", 64),
    ],
)
def test_real_detectors_find_the_same(shared, tmp_path, name, backend, images):
    source = shared / "models" / f"{name}.onnx"
    plain = BuildPlan(source, "plain", tmp_path, backend)
    whole = BuildPlan(source, "whole", tmp_path, backend, image_front=True, nms_tail=True)
    cards = [build(plan) for plan in (plain, whole)]
    assert cards[1].inputs[0].dtype == "uint8"
    assert cards[1].preprocess.anchor == cards[0].preprocess.anchor
    assert cards[1].agreement == cards[0].agreement
    assert cards[0].content_key != cards[1].content_key
    found = 0
    with Engine.open(tmp_path / "plain/1") as host, Engine.open(tmp_path / "whole/1") as graph:
        for file in image_files(shared / "data" / "coco64" / "val", images):
            want, have = (engine.detect(read_image(file)) for engine in (host, graph))
            found += len(want)
            np.testing.assert_array_equal(have.class_ids, want.class_ids)
            np.testing.assert_allclose(have.scores, want.scores, atol=1e-4)
            np.testing.assert_allclose(have.boxes, want.boxes, atol=0.01)
    assert found > images


def test_a_front_alone_serves_what_is_no_detector(network, tmp_path):
    plan = BuildPlan(network, "n", tmp_path, "onnxruntime", image_front=True)
    card = build(plan)
    assert (card.inputs[0].dtype, card.inputs[0].shape) == ("uint8", (-1, 64, 64, 3))
    build(BuildPlan(network, "plain", tmp_path, "onnxruntime"))
    with Engine.open(tmp_path / "n/1") as engine, Engine.open(tmp_path / "plain/1") as plain:
        pixels = draw(80, 60, 1)
        want, have = plain.outputs_of(pixels)["out"], engine.outputs_of(pixels)["out"]
    np.testing.assert_allclose(have, want, atol=1e-5)
    with pytest.raises(UnsupportedModel):
        build(BuildPlan(network, "tail", tmp_path, "onnxruntime", nms_tail=True))


def test_a_tail_that_finds_something_else_is_refused(deep_detector, images, tmp_path, monkeypatch):
    """As one that suppresses at another overlap would."""
    right = graphs.add_nms_tail
    monkeypatch.setattr(graphs, "add_nms_tail", lambda graph, head: right(graph, head, iou=0.1))
    for backend in CPU_BACKENDS:
        plan = BuildPlan(deep_detector, "d", tmp_path, backend, images=images, nms_tail=True)
        with pytest.raises(Disagreement, match="--no-nms-tail"):
            build(plan)
    assert not (tmp_path / "d" / "1").exists()


class Answers:
    """An engine without a head that gives the same outputs for every image."""

    head = None

    def __init__(self, **outputs):
        self._outputs = {name: np.asarray(array) for name, array in outputs.items()}

    def outputs_of(self, pixels):
        return self._outputs


def test_outputs_that_the_fused_parts_change_are_refused():
    for same in (
        {"flags": [True, False]},
        {"a": [1.0, -np.inf, np.nan]},
    ):
        check_fused(Answers(**same), Answers(**same))
    check_fused(Answers(a=np.uint8([200])), Answers(a=np.uint8([199])))
    for want, have in (
        ({"a": np.ones(1000, np.float16) * 1000}, {"a": np.ones(1000, np.float16) * 700}),
        ({"a": np.ones(1000) * 100, "b": [1.0]}, {"a": np.ones(1000) * 100, "b": [-5.0]}),
        ({"a": [1.0, 2.0]}, {"a": [[1.0, 2.0]]}),
        ({"a": [1.0]}, {"a": [np.nan]}),
    ):
        with pytest.raises(Disagreement):
            check_fused(Answers(**want), Answers(**have))


TENSORS = Recognition(None, "no detector", "tensors")
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


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.channels}-{s.layout}-{s.dtype}")
def test_a_front_makes_what_the_host_makes(shared, tmp_path, backend, spec):
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
    # A model that takes such images is left alone.
    spec = replace(YOLO, scale=1.0, layout="NHWC", dtype="uint8")
    graph = through(spec)
    assert add_image_front(graph, spec) == spec
    assert graph == through(spec)


@pytest.mark.parametrize(
    ("name", "precision"), [("yolox_nano", "float16"), ("mobilenetv2", "INT8")]
)
def test_a_front_goes_before_any_precision(shared, name, precision):
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


def copied(graph: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    return copy


def photographs(shared, most):
    return [read_image(file) for file in image_files(shared / "data/coco64/val", most)]


def host_and_graph(shared, name, backend, folder, rows=1, **options):
    """A model as it is, and with suppression in its graph."""
    model = prepared(shared, name)
    graph = copied(model.graph)
    head = add_nms_tail(graph, model.head, **options)
    onnx.checker.check_model(graph, full_check=True)
    return (
        Opened(model.graph, model.head, model.preprocess, backend, folder / "host", rows),
        Opened(graph, head, model.preprocess, backend, folder / "graph", rows),
    )


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", ["yolov8n", "yolov5n", "yolox_nano"])
def test_a_batch(shared, tmp_path, name, backend):
    host, graph = host_and_graph(shared, name, backend, tmp_path, rows=4)
    with host, graph:
        batch = photographs(shared, 4)
        for want, have in zip(host.detect(*batch), graph.detect(*batch), strict=True):
            assert_identical(have, want)
            assert len(want)
        assert_identical(graph.detect(batch[2])[0], host.detect(batch[2])[0])


def test_what_is_fixed_in_the_graph_and_what_is_still_asked_of_the_host(shared, tmp_path):
    """Fixed are how much boxes may overlap, and how many there are at most."""
    fixed = {"iou": 0.4, "max_det": 5}
    host, graph = host_and_graph(shared, "yolox_nano", "onnxruntime", tmp_path, **fixed)
    with host, graph:
        for pixels in photographs(shared, 8):
            [want], [have] = host.detect(pixels, **fixed), graph.detect(pixels)
            assert_identical(have, want)
    (tmp_path / "asked").mkdir()
    host, graph = host_and_graph(shared, "yolox_nano", "openvino", tmp_path / "asked")
    with host, graph:
        for pixels in photographs(shared, 3):
            for options in ({"conf": 0.1}, {"classes": (0, 2)}, {"max_det": 2}):
                [want], [have] = host.detect(pixels, **options), graph.detect(pixels, **options)
                assert_identical(have, want)


def decoded(graph, recognition, row):
    [answer] = run(graph, row)
    assert answer.dtype == np.float32
    head = open_head(recognition, graph_inputs(graph))
    return head.decode({head.outputs[0]: answer}, 0, PredictOptions())


@pytest.mark.parametrize(
    ("name", "precision"), [("yolov8n", "INT8"), ("yolov5n", "float16"), ("yolox_nano", "INT8")]
)
def test_a_tail_is_float32_after_any_precision(shared, name, precision):
    model = prepared(shared, name)
    graph = model.graph
    if precision == "INT8":
        graph = quantise(graph, ranges(shared, name), Encoding.SIGNED)
    graph = to_half(graph)
    want = decoded(graph, model.head, bus(shared, name))
    have = decoded(graph, add_nms_tail(graph, model.head), bus(shared, name))
    assert_identical(have, want)
    assert len(want)


# What the tail takes of each model is float32 after any precision, as is shown above.
@pytest.mark.parametrize(
    ("name", "precision"),
    [("yolov8n", "INT8"), ("yolov5n", "float16"), ("yolox_nano", "float32")],
)
def test_tensorrt_takes_it(shared, name, precision):
    """With the image front, for GPUs that are not here."""
    from tests.engines.rtx import compile_graph

    model = prepared(shared, name)
    graph = copied(model.graph)
    if precision == "INT8":
        graph = quantise(graph, ranges(shared, name), Encoding.SIGNED)
    if precision != "float32":
        graph = to_half(graph)
    add_image_front(graph, model.preprocess)
    add_nms_tail(graph, model.head)
    # Turing's INT8 is FP16, also of what is built with it.
    found = compile_graph(graph, "SM89" if precision == "INT8" else "SM75,SM89")
    assert found.engine, found.messages
    kind = {"float32": "float", "float16": "half", "INT8": "int8"}[precision]
    assert kind in found.convolutions


def test_a_file_with_both_is_built_and_served(shared, tmp_path):
    """As any model is, and with the labels that are in it."""
    model = prepared(shared, "yolov8n")
    graph = copied(model.graph)
    spec = add_image_front(graph, model.preprocess)
    head = add_nms_tail(graph, model.head)
    again = recognise(graph_inputs(graph), graph_outputs(graph), metadata_of(graph))
    assert again.family == head.family == "yolov10"
    assert head.num_classes == 80
    onnx.save(graph, tmp_path / "both.onnx")
    own = {"anchor": spec.anchor, "unscale": spec.unscale}
    build(BuildPlan(tmp_path / "both.onnx", "both", tmp_path, "openvino", preprocess=own))
    [pixels] = photographs(shared, 1)
    with (
        Engine.open(tmp_path / "both" / "1") as engine,
        Opened(model.graph, model.head, model.preprocess, "openvino", tmp_path / "host") as host,
    ):
        assert engine.labels == model.labels
        assert engine.card.preprocess == spec
        [want] = host.detect(pixels)
        want = want.to_source(fit(spec, pixels.shape[1], pixels.shape[0]))
        assert_identical(engine.detect(pixels), want, pixels=2e-3)


def test_a_tail_is_for_detectors_without_one(shared):
    model = prepared(shared, "yolov10n")
    graph = copied(model.graph)
    assert add_nms_tail(graph, model.head) is model.head
    assert graph == model.graph
    for name in ("yolov8n-seg-320", "yolov8n-pose"):
        model = prepared(shared, name)
        graph = copied(model.graph)
        with pytest.raises(UnsupportedModel):
            add_nms_tail(graph, model.head)
        assert graph == model.graph


def test_names_batch_and_metadata_stay(shared):
    model = prepared(shared, "yolov8n")
    graph = copied(model.graph)
    add_image_front(graph, model.preprocess)
    [image] = graph_inputs(graph)
    assert (image.name, image.dtype, image.shape) == ("images", "uint8", (-1, 640, 640, 3))
    assert metadata_of(graph) == model.metadata
    add_nms_tail(graph, model.head, max_det=100)
    [output] = graph_outputs(graph)
    assert (output.name, output.dtype, output.shape) == ("output0", "float32", (-1, 100, 6))
    assert metadata_of(graph) == {**model.metadata, "end2end": "True"}
