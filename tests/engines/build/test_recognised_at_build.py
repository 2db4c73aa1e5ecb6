"""A build recognises a head by sample images, asks where they differ, and notes its guesses."""

import re

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.engines.heads.test_contradictions import Surgeon
from tests.engines.tiny import constant, save, tiny_detector

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import prepare
from fovea_engines.engine import Engine
from fovea_engines.heads.base import IMAGENET
from fovea_engines.heads.presets import read_preprocess
from fovea_engines.progress import Progress
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

pytestmark = [pytest.mark.real, pytest.mark.slow]

# Columns of a pose model, with y before x in each keypoint.
CROSSED = [*range(5), *(5 + 3 * point + at for point in range(17) for at in (1, 0, 2))]


class Notes(Progress):
    def __init__(self):
        super().__init__()
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def grey(tmp_path):
    """A folder of one image that shows nothing."""
    folder = tmp_path / "grey"
    folder.mkdir()
    cv2.imwrite(str(folder / "grey.png"), np.full((64, 64, 3), 128, np.uint8))
    return folder


def plan(source, tmp_path, **options):
    return BuildPlan(source, "m", tmp_path / "models", "onnxruntime", **options)


def saved(surgeon, path):
    onnx.save(surgeon.finished(), path)
    return path


def clothes(shared, **options):
    path = shared / "models" / "heads" / "ultralytics-rtdetr-clothes.onnx"
    return Surgeon(path, metadata=False, **options)


def test_images_that_show_nothing_are_followed_by_the_photographs(shared, tmp_path, grey):
    """The rows are fractions, as the photographs show: on the grey image there is no row."""
    source = saved(clothes(shared)("Identity"), tmp_path / "m.onnx")
    assert build(plan(source, tmp_path, images=grey)).family == "ultralytics-rtdetr"


def test_a_build_asks_where_no_image_shows_anything(shared, tmp_path, grey):
    source = saved(clothes(shared)("Mul", np.float32(0)), tmp_path / "m.onnx")
    with pytest.raises(InvalidOption, match="give --images that show what it finds") as asked:
        build(plan(source, tmp_path, images=grey))
    assert "--head yolov10 or --head ultralytics-rtdetr" in str(asked.value)


def test_a_dynamic_size_is_said(tmp_path):
    progress = Notes()
    model = tiny_detector(tmp_path / "tiny.onnx", size=("h", "w"))
    build(plan(model, tmp_path), progress)
    assert "the size is dynamic: built for 640x640; --size HxW for another" in progress.notes
    progress = Notes()
    build(plan(model, tmp_path, size=(64, 64)), progress)
    assert not any("dynamic" in note for note in progress.notes)


def test_a_size_that_cannot_be_computed_is_followed_by_one_that_can(shared, tmp_path):
    source = shared / "models" / "heads" / "yolo5face-500m.onnx"
    with pytest.raises(UnsupportedModel, match=r"at 640x640.*build with --size 320x320"):
        build(plan(source, tmp_path))
    assert build(plan(source, tmp_path, size=(320, 320))).family == "yolov5-face"


def test_preprocessing_is_settled_by_what_a_model_finds(shared, tmp_path):
    source = shared / "models" / "heads" / "efficientnms.onnx"
    progress = Notes()
    card = build(plan(source, tmp_path), progress)
    assert card.preprocess_from.startswith("family, by what the model finds: 4 objects, whose")
    assert "with mean-std 0 objects" in card.preprocess_from
    assert any("preprocessing: family" in note for note in progress.notes)
    assert "with mean-std 0 objects" in (tmp_path / "models/m/1/card.md").read_text()
    [candidate] = (one for one in card.head_candidates if one.against is None)
    assert (candidate.family, candidate.strength) == ("efficientnms", "names")
    chosen = build(plan(source, tmp_path, preprocess={"channels": "BGR"}))
    assert chosen.preprocess_from.startswith("by --preprocess: with it the model finds 4 objects")


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
    assert card.preprocess_from.startswith("mean-std, by what the model finds: 9 objects")
    assert (card.preprocess.std, card.preprocess.fit) == (IMAGENET["std"], "letterbox")


def test_what_finds_nothing_is_not_offered(tmp_path):
    """Mean and std are told by what it finds, and the geometry is not."""
    source = sure_below_zero(tmp_path / "m.onnx", ("labels", "boxes", "scores"))
    with pytest.raises(InvalidOption) as asked:
        build(plan(source, tmp_path))
    offered = re.findall(r"--preprocess (\S+) \(it finds 9 objects", str(asked.value))
    assert offered == ["mean-std", "letterboxed-mean-std"]
    assert "none of the others: with family 0 objects; with letterboxed 0 objects" in str(
        asked.value
    )


@pytest.mark.parametrize("file", ["mmdeploy", "paddle", "nanodet-m-416"])
def test_a_build_asks_for_preprocessing_that_nothing_tells(shared, tmp_path, file):
    source = shared / "models" / "heads" / f"{file}.onnx"
    with pytest.raises(InvalidOption, match=r"--preprocess family \(it finds \d+ objects") as asked:
        build(plan(source, tmp_path))
    other = {"mmdeploy": "stretched", "paddle": "0-to-1"}.get(file, "stretched")
    assert f"--preprocess {other} (it finds " in str(asked.value)
    assert not (tmp_path / "models" / "m").exists()


def test_a_preprocessing_that_finds_nothing_is_refused(shared, tmp_path):
    source = shared / "models" / "yolov10n.onnx"
    given = read_preprocess("imagenet")
    with pytest.raises(UnsupportedModel, match=r"--preprocess is wrong: with it .* 2 objects"):
        build(plan(source, tmp_path, preprocess=given))
    assert not (tmp_path / "models" / "m").exists()


def test_a_preprocessing_that_finds_a_crowd_is_not_refused(shared, tmp_path):
    """900 objects of yolov10n are noise here, but a user's images may show as many."""
    progress = Notes()
    source, given = shared / "models" / "yolov10n.onnx", read_preprocess("yolox")
    prepare(plan(source, tmp_path, preprocess=given), progress)
    assert any("finds 900 objects, which is noise" in note for note in progress.notes)


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


def test_a_preprocessing_is_not_refused_by_images_that_show_nothing(shared, tmp_path, grey):
    source = shared / "models" / "yolov10n.onnx"
    given = read_preprocess("imagenet")
    assert build(plan(source, tmp_path, preprocess=given, images=grey)).family == "yolov10"


def test_class_ids_beyond_the_labels_are_refused(shared, tmp_path):
    source = shared / "models" / "heads" / "efficientnms.onnx"
    with pytest.raises(InvalidOption, match=r"finds class \d+ .* only 0 to 0: give --labels"):
        build(plan(source, tmp_path, labels=("shirt",)))


def test_a_plain_folder_serves_tensors_where_nothing_tells(shared, tmp_path):
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    saved(clothes(shared)("Mul", np.float32(0)), folder / "model.onnx")
    with Engine.open(folder) as engine:
        assert engine.head is None
        assert "show nothing that it finds" in engine.card.reason
        assert "`fovea build --head FAMILY`" in engine.card.reason
        assert "yolov10" in [one.family for one in engine.card.head_candidates]


@pytest.mark.parametrize(
    ("file", "columns", "axis", "says"),
    [
        ("yolov10n", [1, 0, 3, 2, 4, 5], 2, "x and y"),
        ("yolov8n", [0, 1, 3, 2, *range(4, 84)], 1, "or width and height"),
        ("yolov8n-pose", CROSSED, 1, "x and y swapped 100%"),
    ],
)
def test_numbers_that_are_swapped_show_in_the_images(shared, tmp_path, file, columns, axis, says):
    model = Surgeon(shared / "models" / f"{file}.onnx").take(columns, axis)
    source = saved(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModel, match=rf"(in the padding|of the keypoints) .*{says}"):
        prepare(plan(source, tmp_path), Progress())
    prepare(plan(shared / "models" / f"{file}.onnx", tmp_path), Progress())


def test_a_model_without_class_names_is_told_what_they_must_be(shared, tmp_path):
    progress = Notes()
    prepare(plan(shared / "models" / "heads" / "rfdetr.onnx", tmp_path), progress)
    [said] = [note for note in progress.notes if "--labels" in note]
    assert "--labels coco91 if it was trained on those, else --labels FILE" in said


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


@pytest.mark.parametrize("name", ["yolov6-end2end", "hf-rtdetr"])
def test_an_input_of_bytes_has_no_values_to_ask_for(shared, tmp_path, name):
    """Its families differ in mean and std alone."""
    card = build(plan(of_bytes(shared, name, tmp_path), tmp_path))
    assert card.family in ("efficientnms", "rtdetr-raw")
    assert "its input takes pixels as they are" in card.preprocess_from
    assert (card.preprocess.scale, card.preprocess.dtype) == (1.0, "uint8")


def test_an_input_of_bytes_is_asked_for_its_geometry(shared, tmp_path):
    source = of_bytes(shared, "dfine", tmp_path)
    with pytest.raises(InvalidOption) as asked:
        build(plan(source, tmp_path))
    assert "--preprocess family (" in str(asked.value)
    assert "--preprocess letterboxed (" in str(asked.value)
    assert "--preprocess mean-std" not in str(asked.value)
    card = build(plan(source, tmp_path, preprocess=read_preprocess("letterboxed")))
    assert (card.preprocess.fit, card.preprocess.pad) == ("letterbox", 0)


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
    assert (card.family, "no objectness" in card.reason) == (None, True)
    old = read_preprocess("mean-std")
    assert build(plan(tmp_path / "old.onnx", tmp_path, preprocess=old)).family == "yolox"
