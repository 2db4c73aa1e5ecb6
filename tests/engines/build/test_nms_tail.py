"""Suppression inside the graph: the boxes of the host, on every backend that computes it."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.engines.opened import Opened, assert_identical
from tests.engines.real import bus, prepared, ranges, run

from fovea_engines.backends.backend import Encoding
from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import image_files, read_image
from fovea_engines.heads.nms_tail import add_nms_tail
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.onnx_graph.image_front import add_image_front
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.quantization.half import to_half
from fovea_engines.quantization.qdq import quantise
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import UnsupportedModel
from fovea_preprocess.letterbox import fit

pytestmark = [pytest.mark.real, pytest.mark.slow]

DETECTORS = pytest.mark.parametrize("name", ["yolov8n", "yolov5n", "yolox_nano"])
BACKENDS = pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])


def copied(graph: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    return copy


def images(shared, most):
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


def test_all_images(shared, tmp_path):
    """On the model that finds most: 301 boxes of score .25 and more on one of them."""
    model = prepared(shared, "yolov5n")
    host = open_head(model.head, model.inputs)
    graph = copied(model.graph)
    head = open_head(add_nms_tail(graph, model.head), model.inputs)
    raw = f"{host.outputs[0]}/raw"
    graph.graph.output.append(copied(model.graph).graph.output[0])
    graph.graph.output[1].name = raw
    found = 0
    tensors = replace(model.head, family=None)
    with Opened(graph, tensors, model.preprocess, "openvino", tmp_path / "engine") as engine:
        for pixels in images(shared, 64):
            outputs = engine.infer(pixels)
            want = host.decode({host.outputs[0]: outputs[raw]}, 0, PredictOptions())
            assert_identical(head.decode(outputs, 0, PredictOptions()), want)
            found += len(want)
    assert found > 300


@BACKENDS
@DETECTORS
def test_a_batch(shared, tmp_path, name, backend):
    host, graph = host_and_graph(shared, name, backend, tmp_path, rows=4)
    with host, graph:
        batch = images(shared, 4)
        for want, have in zip(host.detect(*batch), graph.detect(*batch), strict=True):
            assert_identical(have, want)
            assert len(want)
        assert_identical(graph.detect(batch[2])[0], host.detect(batch[2])[0])


def test_what_is_fixed_in_the_graph(shared, tmp_path):
    """How much boxes may overlap, and how many there are at most."""
    options = {"iou": 0.4, "max_det": 5}
    host, graph = host_and_graph(shared, "yolox_nano", "onnxruntime", tmp_path, **options)
    with host, graph:
        for pixels in images(shared, 8):
            [want], [have] = host.detect(pixels, **options), graph.detect(pixels)
            assert_identical(have, want)


def test_what_is_still_asked_of_the_host(shared, tmp_path):
    host, graph = host_and_graph(shared, "yolox_nano", "openvino", tmp_path)
    with host, graph:
        for pixels in images(shared, 3):
            for options in ({"conf": 0.1}, {"classes": (0, 2)}, {"max_det": 2}):
                [want], [have] = host.detect(pixels, **options), graph.detect(pixels, **options)
                assert_identical(have, want)


def decoded(graph, recognition, row):
    [answer] = run(graph, row)
    assert answer.dtype == np.float32
    head = open_head(recognition, graph_inputs(graph))
    return head.decode({head.outputs[0]: answer}, 0, PredictOptions())


@pytest.mark.parametrize("precision", ["float16", "INT8"])
@DETECTORS
def test_it_is_float32_after_any_precision(shared, name, precision):
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


@pytest.mark.parametrize(
    ("name", "backend"), [("yolov8n", "openvino"), ("yolox_nano", "onnxruntime")]
)
def test_a_file_with_both_is_built_and_served(shared, tmp_path, name, backend):
    """As any model is, and with the labels that are in it."""
    model = prepared(shared, name)
    graph = copied(model.graph)
    spec = add_image_front(graph, model.preprocess)
    head = add_nms_tail(graph, model.head)
    again = recognise(graph_inputs(graph), graph_outputs(graph), metadata_of(graph))
    assert again.family == head.family == "yolov10"
    assert head.num_classes == 80
    onnx.save(graph, tmp_path / "both.onnx")
    build(
        BuildPlan(
            tmp_path / "both.onnx",
            "both",
            tmp_path / "repository",
            backend,
            preprocess={"anchor": spec.anchor, "unscale": spec.unscale},
        )
    )
    [pixels] = images(shared, 1)
    with (
        Engine.open(tmp_path / "repository" / "both" / "1") as engine,
        Opened(model.graph, model.head, model.preprocess, backend, tmp_path / "host") as host,
    ):
        assert engine.labels == model.labels
        assert engine.card.preprocess == spec
        [want] = host.detect(pixels)
        back = fit(spec, pixels.shape[1], pixels.shape[0])
        want = want.to_source(back)
        assert_identical(engine.detect(pixels), want, pixels=2e-3)


def test_an_end_to_end_model_is_left_alone(shared):
    model = prepared(shared, "yolov10n")
    graph = copied(model.graph)
    assert add_nms_tail(graph, model.head) is model.head
    assert graph == model.graph


@pytest.mark.parametrize(
    ("name", "reason"),
    [("yolov8n-seg-320", "'segment'"), ("yolov8n-pose", "'pose'")],
)
def test_other_models_are_refused(shared, name, reason):
    model = prepared(shared, name)
    graph = copied(model.graph)
    with pytest.raises(UnsupportedModel, match=reason):
        add_nms_tail(graph, model.head)
    assert graph == model.graph


def test_metadata_and_name_stay(shared):
    model = prepared(shared, "yolov8n")
    graph = copied(model.graph)
    add_nms_tail(graph, model.head, max_det=100)
    [output] = graph_outputs(graph)
    assert (output.name, output.dtype, output.shape) == ("output0", "float32", (-1, 100, 6))
    assert metadata_of(graph) == {**model.metadata, "end2end": "True"}
