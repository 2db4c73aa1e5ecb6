"""The preprocessing of a build: told by what a model finds, asked for, or given."""

import re

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.engines.build.test_head import plan
from tests.engines.noting import Noting
from tests.engines.tiny import constant, save, tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.engine import Engine
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.heads.base import IMAGENET
from fovea_engines.heads.presets import read_preprocess
from fovea_engines.progress import Progress
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = pytest.mark.slow


@pytest.mark.real
def test_preprocessing_is_settled_by_what_a_model_finds(shared, tmp_path):
    source = shared / "models" / "heads" / "efficientnms.onnx"
    progress = Noting()
    card = build(plan(source, tmp_path), progress)
    assert card.preprocess_from.startswith(
        "family, because the model finds most with it: 4 objects, whose"
    )
    assert "with mean-std 0 objects" in card.preprocess_from
    assert any("preprocessing: family" in note for note in progress.notes)
    assert "with mean-std 0 objects" in (tmp_path / "models/m/1/card.md").read_text()
    [candidate] = (one for one in card.head_candidates if one.against is None)
    assert (candidate.family, candidate.strength) == ("efficientnms", "names")
    chosen = build(plan(source, tmp_path, preprocess={"channels": "BGR"}))
    assert chosen.preprocess_from.startswith(
        "by --preprocess: with this preprocessing the model finds 4 objects"
    )


def sure_below_zero(path, names):
    """A model of three boxes, scores and class ids that is sure only of what is below 0."""
    boxes = np.float32([[[4, 4, 30, 40], [20, 10, 60, 50], [5, 30, 25, 60]]])
    weights = [
        constant("each", np.float32([[0.4, 0.35, 0.3]])),
        constant("b", boxes),
        constant("l", np.array([[0, 1, 2]])),
        constant("count", np.array([[3]])),
        constant("low", np.float32(0)),
        constant("high", np.float32(2)),
    ]
    nodes = [
        helper.make_node("ReduceMin", ["images"], ["least"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Neg", ["least"], ["depth"]),
        helper.make_node("Clip", ["depth", "low", "high"], ["sure"]),
        helper.make_node("Mul", ["sure", "each"], ["s"]),
    ]
    made = {"l": [1, 3], "b": [1, 3, 4], "s": [1, 3], "count": [1, 1]}
    outputs = [(name, shape) for name, shape in zip(names, made.values(), strict=False)]
    for name, one in zip(names, made, strict=False):
        nodes.append(helper.make_node("Identity", [one], [name]))
    source = save(path, nodes, [("images", [1, 3, 64, 64])], outputs, weights)
    model = onnx.load(source)
    for output in (model.graph.output[0], *model.graph.output[3:]):
        output.type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(model, source)
    return source


def test_another_preprocessing_than_the_usual_is_found(tmp_path):
    names = ("det_classes", "det_boxes", "det_scores", "num_dets")
    card = build(plan(sure_below_zero(tmp_path / "m.onnx", names), tmp_path))
    assert card.family == "efficientnms"
    assert card.preprocess_from.startswith(
        "mean-std, because the model finds most with it: 9 objects"
    )
    assert (card.preprocess.std, card.preprocess.fit) == (IMAGENET["std"], "letterbox")


def test_what_finds_nothing_is_not_offered(tmp_path):
    """Mean and std are told by what it finds, and the geometry is not."""
    source = sure_below_zero(tmp_path / "m.onnx", ("labels", "boxes", "scores"))
    with pytest.raises(InvalidOption) as asked:
        build(plan(source, tmp_path))
    offered = re.findall(r"--preprocess (\S+) \(it finds 9 objects", str(asked.value))
    assert offered == ["mean-std", "letterboxed-mean-std"]
    assert "do not fit: with family 0 objects; with letterboxed 0 objects" in str(asked.value)


@pytest.mark.real
@pytest.mark.parametrize("file", ["mmdeploy", "paddle", "nanodet-m-416"])
def test_a_build_asks_for_preprocessing_that_nothing_tells(shared, tmp_path, file):
    source = shared / "models" / "heads" / f"{file}.onnx"
    with pytest.raises(InvalidOption, match=r"--preprocess family \(it finds \d+ objects") as asked:
        build(plan(source, tmp_path))
    other = {"mmdeploy": "stretched", "paddle": "0-to-1"}.get(file, "stretched")
    assert f"--preprocess {other} (it finds " in str(asked.value)
    assert not (tmp_path / "models" / "m").exists()


@pytest.mark.real
def test_a_preprocessing_that_finds_nothing_is_refused(shared, tmp_path):
    source = shared / "models" / "yolov10n.onnx"
    given = read_preprocess("imagenet")
    with pytest.raises(UnsupportedModel, match="2 objects"):
        build(plan(source, tmp_path, preprocess=given))
    assert not (tmp_path / "models" / "m").exists()


@pytest.mark.real
def test_a_preprocessing_that_finds_a_crowd_is_not_refused(shared, tmp_path):
    """900 objects of yolov10n are noise here, but a user's images may show as many."""
    progress = Noting()
    source, given = shared / "models" / "yolov10n.onnx", read_preprocess("yolox")
    prepare(plan(source, tmp_path, preprocess=given), progress)
    assert any("finds 900 objects, far too many" in note for note in progress.notes)


@pytest.mark.parametrize(
    ("name", "scale", "fit"),
    [
        (None, 1, "letterbox"),
        ("family", 1, "letterbox"),
        ("stretched", 1, "stretch"),
        ("0-to-1", 1, "letterbox"),
        ("yolo", 1 / 255, "letterbox"),
    ],
)
def test_only_a_whole_preset_replaces_what_the_graph_decides(tmp_path, name, scale, fit):
    """The model divides by 255 itself, and variants name the rest."""
    model = onnx.load(tiny_detector(tmp_path / "tiny.onnx"))
    for node in model.graph.node:
        node.input[:] = ["divided" if each == "images" else each for each in node.input]
    model.graph.initializer.append(constant("255", np.float32(255)))
    model.graph.node.insert(0, helper.make_node("Div", ["images", "255"], ["divided"]))
    onnx.save(model, tmp_path / "m.onnx")
    given = None if name is None else read_preprocess(name)
    spec = prepare(plan(tmp_path / "m.onnx", tmp_path, preprocess=given), Progress()).preprocess
    assert (spec.scale, spec.fit) == (scale, fit)


def of_bytes(shared, name, tmp_path):
    """A network that takes 0 to 1, behind a uint8 input that it divides by 255 itself."""
    model = onnx.load(shared / "models" / "heads" / f"{name}.onnx")
    [image] = (one for one in model.graph.input if len(one.type.tensor_type.shape.dim) == 4)
    for node in model.graph.node:
        node.input[:] = ["as/shares" if name == image.name else name for name in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(255), "as/most"))
    model.graph.node.insert(0, helper.make_node("Div", ["as/floats", "as/most"], ["as/shares"]))
    model.graph.node.insert(0, helper.make_node("Cast", [image.name], ["as/floats"], to=1))
    image.type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(model, tmp_path / "bytes.onnx")
    return tmp_path / "bytes.onnx"


@pytest.mark.real
@pytest.mark.parametrize("name", ["yolov6-end2end", "hf-rtdetr"])
def test_an_input_of_bytes_has_no_values_to_ask_for(shared, tmp_path, name):
    """Its families differ in mean and std alone."""
    card = build(plan(of_bytes(shared, name, tmp_path), tmp_path))
    assert card.family in ("efficientnms", "rtdetr-raw")
    assert "unchanged pixel values" in card.preprocess_from
    assert (card.preprocess.scale, card.preprocess.dtype) == (1.0, "uint8")


@pytest.mark.real
def test_an_input_of_bytes_is_asked_for_its_geometry(shared, tmp_path):
    source = of_bytes(shared, "dfine", tmp_path)
    with pytest.raises(InvalidOption) as asked:
        build(plan(source, tmp_path))
    assert "--preprocess family (" in str(asked.value)
    assert "--preprocess letterboxed (" in str(asked.value)
    assert "--preprocess mean-std" not in str(asked.value)
    card = build(plan(source, tmp_path, preprocess=read_preprocess("letterboxed")))
    assert (card.preprocess.fit, card.preprocess.pad) == ("letterbox", 0)


@pytest.mark.real
def test_yolox_of_before_0_1_1_is_not_read_with_the_values_of_today(shared, tmp_path):
    """It took RGB less ImageNet's mean, over its std, and has names and shapes of today."""
    model = onnx.load(shared / "models" / "yolox_nano.onnx")
    [image] = model.graph.input
    for node in model.graph.node:
        node.input[:] = ["bgr" if name == image.name else name for name in node.input]
    std, mean = (255 * np.float32(IMAGENET[name]).reshape(3, 1, 1) for name in ("std", "mean"))
    weights = {"std": std, "mean": mean, "order": np.array([2, 1, 0])}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    front = [
        helper.make_node("Mul", [image.name, "std"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mean"], ["rgb"]),
        helper.make_node("Gather", ["rgb", "order"], ["bgr"], axis=1),
    ]
    for node in reversed(front):
        model.graph.node.insert(0, node)
    onnx.save(model, tmp_path / "old.onnx")
    card = build(plan(tmp_path / "old.onnx", tmp_path))
    assert (card.family, "not an objectness" in card.reason) == (None, True)
    old = read_preprocess("mean-std")
    assert build(plan(tmp_path / "old.onnx", tmp_path, preprocess=old)).family == "yolox"


LABELS = ("car", "van", "truck", "bus")
COLOURS = ("white", "gray", "yellow", "red", "green", "blue", "black")
# Shares of red, green and blue that are left of a white car.
PAINT = {
    "white": (1, 1, 1),
    "red": (1, 0.15, 0.15),
    "blue": (0.15, 0.2, 1),
    "yellow": (1, 0.85, 0.1),
    "green": (0.1, 0.6, 0.2),
}


@pytest.fixture
def attributes(shared):
    return shared / "models" / "chains" / "vehicle-attributes-recognition-barrier-0039.onnx"


@pytest.fixture(scope="module")
def white_car(shared):
    video = cv2.VideoCapture(str(shared / "data" / "video" / "car-detection.mp4"))
    for _ in range(331):
        frame = video.read()[1]
    return frame[5:315, 130:315, ::-1]


def zoo_plan(attributes, folder, **options):
    labels = (*LABELS, *COLOURS)
    return BuildPlan(attributes, "car", folder / "r", "onnxruntime", labels=labels, **options)


@pytest.mark.real
def test_colours_of_a_car(attributes, white_car, tmp_path):
    told = Noting()
    card = build(zoo_plan(attributes, tmp_path), told)
    assert (card.preprocess.fit, card.preprocess.channels) == ("stretch", "BGR")
    assert card.preprocess_from.startswith("a guess: the model was converted from OpenVINO")
    assert any("model zoo" in note for note in told.notes)
    with Engine.open(tmp_path / "r" / "car" / "1") as engine:
        for colour, shares in PAINT.items():
            car = np.ascontiguousarray((white_car * np.array(shares)).astype(np.uint8))
            kind, painted = engine.predict(car).found
            assert LABELS[kind.class_ids[0]] == "car"
            best = painted.class_ids[0] - painted.first
            assert (COLOURS[best], painted.probabilities[best] > 0.9) == (colour, True)


@pytest.mark.real
def test_what_the_user_says_of_openvinos_counts(attributes, tmp_path):
    given = read_preprocess("imagenet")
    card = build(zoo_plan(attributes, tmp_path, preprocess=given))
    assert (card.preprocess.channels, card.preprocess_from) == ("RGB", "by --preprocess")
    card = build(zoo_plan(attributes, tmp_path, preprocess={"channels": "RGB"}))
    assert (card.preprocess.channels, card.preprocess.scale) == ("RGB", 1.0)


@pytest.mark.real
def test_others_than_openvinos_are_guessed_as_before(attributes, tmp_path):
    model = onnx.load(attributes)
    model.graph.name = "torch-jit-export"
    assert recognise_graph(model)[0].own_preprocess == {}
    # Where the family is known, so is its preprocessing.
    model = onnx.load(tiny_detector(tmp_path / "d.onnx"))
    model.graph.name = "from-openvino"
    head, _ = recognise_graph(model)
    assert (head.family, head.own_preprocess) == ("yolov8", {})
