"""Which models are taken for detectors, by shapes, metadata and numbers, or by none of these."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import told

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

COCO = {"names": str({i: f"class {i}" for i in range(80)}), "stride": "32"}


def image(height=640, width=640, dtype="float32"):
    return [TensorSpec("images", dtype, (-1, 3, height, width))]


def output(*shape, dtype="float32"):
    return [TensorSpec("output0", dtype, (-1, *shape))]


FREE, GREY = image(-1, -1), [TensorSpec("x", "float32", (-1, 1, 640, 640))]
BYTES = [TensorSpec("x", "uint8", (1, 640, 640, 3))]
PROTOTYPES = TensorSpec("protos", "float32", (-1, 32, 160, 160))
RAW_LEVEL = TensorSpec("p3", "float32", (-1, 3, 80, 80, 85))
END_TO_END = COCO | {"end2end": "True"}
DETECTORS = {
    "rectangle": (image(320, 480), output(84, 3150), {}, "yolov8"),
    "v8 P6": (image(1280, 1280), output(84, 34000), {}, "yolov8"),
    "v5 P6": (image(1280, 1280), output(102000, 85), {}, "yolov5"),
    "P2": (image(), output(34000, 85), {}, "yolox"),
    "v3-tinyu": (image(), output(84, 2000), COCO, "yolov8"),
    "v3-tiny": (image(416, 416), output(2535, 85), COCO, "yolov5"),
    "yolox of two strides": (image(416, 416), output(845, 85), {}, "yolox"),
    "dynamic v3-tinyu": (FREE, output(84, 2000), COCO, "yolov8"),
    "one class": (image(), output(5, 8400), {}, "yolov8"),
    "v5 one class": (image(), output(25200, 6), {}, "yolov5"),
    "yolox one class": (image(), output(8400, 6), {}, "yolox"),
    "end to end": (image(), output(100, 6), {}, "yolov10"),
    "NHWC": (BYTES, output(84, 8400), {}, "yolov8"),
    "dynamic v8": (FREE, output(84, -1), COCO, "yolov8"),
    "dynamic v5": (FREE, output(-1, 85), COCO, "yolov5"),
    "dynamic size v5": (FREE, output(25200, 85), COCO, "yolov5"),
    "dynamic end to end": (FREE, output(300, 6), END_TO_END, "yolov10"),
    "size from metadata": (FREE, output(84, 8400), {"imgsz": "[640, 640]"}, "yolov8"),
    "a column more than the names": (image(), output(85, 8400), COCO, "yolov8-obb"),
    "rotated": (image(), output(84, 8400), {"task": "obb"}, "yolov8-obb"),
    "rotated rows": (image(), output(300, 7), {"task": "obb"}, "yolov10-obb"),
    "keypoints": (image(), output(56, 8400), {"kpt_shape": "[17, 3]"}, "yolov8-pose"),
    "prototypes of masks": (image(), [*output(116, 8400), PROTOTYPES], {}, "yolov8-seg"),
    "v5 with a raw level": (image(), [*output(25200, 85), RAW_LEVEL], {}, "yolov5"),
}


@pytest.mark.parametrize("name", DETECTORS)
def test_shapes_and_metadata_tell_detectors(name):
    inputs, outputs, metadata, family = DETECTORS[name]
    found = recognise(inputs, outputs, metadata)
    assert found.family == family
    assert found.reason.startswith("output0 [")
    assert recognise(inputs, outputs, metadata, family).family == family


OTHERS = {
    "transposed v8, named": (image(), output(8400, 84), COCO, "fits rtmdet and picodet"),
    "odd count": (image(), output(84, 8401), {}, "8401"),
    "v5 or yolox": (FREE, output(-1, 85), {}, "do not show which of them it is"),
    "all dynamic": (FREE, output(-1, -1), COCO, "classes is dynamic"),
    "boxes only": (image(), output(4, 8400), {}, "no column for a class"),
    "integers": (image(), output(84, 8400, dtype="int8"), {}, "int8"),
    "task": (image(), output(84, 8400), {"task": "gaze"}, "task 'gaze'"),
    "two inputs": (image() + image(), output(84, 8400), {}, "needs one batch"),
    "grey input": (GREY, output(84, 8400), {}, "colour"),
    "two": (image(), output(84, 8400) + output(84, 8400), {}, "no family"),
    "no output": (image(), [], {}, "no family"),
    "no input": ([], output(84, 8400), {}, "needs one batch"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_serve_tensors_and_say_why(name):
    inputs, outputs, metadata, because = OTHERS[name]
    found = recognise(inputs, outputs, metadata)
    assert found.family is None
    assert because in found.reason
    assert open_head(found, inputs) is None


def test_the_user_settles_what_shapes_leave_open():
    dynamic = image(-1, -1), output(-1, 85), {}
    assert recognise(*dynamic, family="yolox").family == "yolox"
    assert recognise(*dynamic, family="yolov5").num_classes == 80
    assert recognise(image(), output(56, 8400), {}, family="yolov8").num_classes == 52


@pytest.mark.parametrize(
    ("outputs", "metadata", "family", "says"),
    [
        (output(84, 8400), {}, "yolov5", "it could be yolov8"),
        (output(3549, 85), {}, "yolox", "no other family fits, so leave --head out"),
        (output(1000), {}, "yolov8", "it could be classifier"),
        (output(56, 8400), {"task": "pose"}, "yolov8", "the task pose"),
    ],
)
def test_a_wrong_override_is_refused(outputs, metadata, family, says):
    with pytest.raises(UnsupportedModel, match=says):
        recognise(image(), outputs, metadata, family=family)


def test_a_family_that_there_is_not_is_named_with_those_near_it():
    with pytest.raises(InvalidOption, match="yolov8"):
        recognise(image(), output(84, 8400), {}, family="yolov88")


def test_a_raw_grid_needs_a_size_and_a_head_the_name_of_its_output():
    found = recognise(FREE, output(-1, 85), {}, family="yolox")
    with pytest.raises(UnsupportedModel, match="--size"):
        open_head(found, FREE)
    assert open_head(found, image(416, 320)).size == (416, 320)
    renamed = [TensorSpec("renamed:0", "float32", (-1, 84, 8400))]
    found = recognise(image(), renamed, {}, "yolov8")
    assert open_head(found, image()).outputs == ("renamed:0",)


EMPTY = {"output0": np.zeros((1, 300, 6), np.float32)}
ROW = [0.25, 0.5, 0.2, 0.3, 0.9, 2]


def test_rows_of_zeros_decide_between_no_families():
    found = told(EMPTY)
    assert found.family is None
    assert found.unseen
    assert found.open[0] == "yolov10"
    assert "ultralytics-rtdetr" in found.open
    assert "found no object on the sample images" in found.reason


@pytest.mark.parametrize(
    ("row", "family"), [(ROW, "ultralytics-rtdetr"), ([40, 20, 90, 60, 0.9, 2], "yolov10")]
)
def test_one_row_decides(row, family):
    rows = EMPTY["output0"].copy()
    rows[0, 0] = row
    found = told({"output0": rows})
    assert (found.family, found.unseen) == (family, False)


def test_metadata_or_the_user_decides_without_a_row():
    found = told(EMPTY, {"head": "RTDETRDecoder", "names": "['a', 'b', 'c']"})
    assert (found.family, found.unseen) == ("ultralytics-rtdetr", True)
    assert "the outputs could not be checked" in found.reason
    assert told(EMPTY, family="yolov10").family == "yolov10"


def test_rows_of_padding_are_no_evidence():
    """MMDeploy fills up with class -1, others with boxes of score 0."""
    dets = np.full((1, 10, 5), 7, np.float32)
    dets[..., 4] = 0
    for labels in (np.full((1, 10), -1), np.zeros((1, 10))):
        found = told({"dets": dets, "labels": labels.astype(np.int64)})
        assert (found.family, found.unseen) == ("mmdeploy", True)


def not_run(*outputs, metadata=None, family=None):
    image = [TensorSpec("images", "float32", (-1, 3, 640, 640))]
    return recognise(image, outputs, metadata or {}, family, observe=lambda _: ())


@pytest.mark.parametrize(
    ("shape", "could_be"),
    [
        ((300, 6), {"yolov10", "ultralytics-rtdetr"}),
        ((84, 8400), {"yolov8", "libreyolo-yolo9", "yolov8-obb"}),
        ((8400, 85), {"yolox", "yolox-decoded", "yolov6"}),
    ],
)
def test_a_model_that_cannot_be_run_is_not_guessed_by_its_shape(shape, could_be):
    output = TensorSpec("output0", "float32", (-1, *shape))
    found = not_run(output)
    assert (found.family, found.unseen) == (None, True)
    assert set(found.open) >= could_be
    assert "the model could not be run" in found.reason
    assert not_run(output, family=found.open[0]).family == found.open[0]


def test_names_and_metadata_decide_for_a_model_that_cannot_be_run():
    dets = TensorSpec("dets", "float32", (-1, 100, 5)), TensorSpec("labels", "int64", (-1, 100))
    found = not_run(*dets)
    assert (found.family, found.unseen) == ("mmdeploy", True)
    assert "could not be run, so the outputs could not be checked" in found.reason
    rows = TensorSpec("output0", "float32", (-1, 300, 6))
    named = {"head": "RTDETRDecoder", "names": "['a', 'b', 'c']"}
    assert not_run(rows, metadata=named).family == "ultralytics-rtdetr"


@pytest.mark.parametrize("rows", [(40, 97), (640, 640)])
def test_texts_and_maps_that_cannot_be_run_are_no_detectors(rows):
    found = not_run(TensorSpec("output0", "float32", (-1, *rows)))
    assert (found.family, found.open) == (None, ())


@pytest.mark.parametrize(
    ("strides", "family"), [((8, 16, 32), "nanodet"), ((8, 16, 32, 64), "picodet-raw")]
)
def test_distances_of_other_bins_are_not_decoded(strides, family):
    """`reg_max` is 7 in both families, which makes eight bins for each side."""
    image = [TensorSpec("images", "float32", (1, 3, 416, 416))]
    counts = [(-(-416 // stride)) ** 2 for stride in strides]
    for bins, want in ((8, family), (11, None), (17, None)):
        outputs = [TensorSpec(f"c{n}", "float32", (1, n, 80)) for n in counts]
        outputs += [TensorSpec(f"d{n}", "float32", (1, n, 4 * bins)) for n in counts]
        assert recognise(image, outputs, {}).family == want


def test_names_do_not_decide_between_two_tensors():
    image = [TensorSpec("image", "float32", (1, 3, 320, 320))]
    two = {"scores": (1, 2100, 80), "boxes": (1, 2100, 4)}
    found = recognise(image, [TensorSpec(n, "float32", s) for n, s in two.items()], {})
    assert found.open == ("yolo-nas", "ppyoloe", "damo-yolo")
    four = [TensorSpec(name, "float32", (1, 2100, 4)) for name in "ab"]
    assert recognise(image, four, {}, "yolo-nas").outputs == ("a", "b")
    assert recognise(image, four, {}, "damo-yolo").outputs == ("b", "a")


@pytest.mark.parametrize(("like", "contradicts"), [("yolov5", False), ("others", True)])
def test_one_object_whose_anchors_give_it_several_sizes_has_other_anchors(like, contradicts):
    """Each of the three anchors of a cell finds it."""
    outputs = {str(n): np.full((1, 3, 16 >> n, 16 >> n, 8), -9, np.float32) for n in range(3)}
    outputs["0"][0, :, 4, 5] = [0, 0, 0, 0, 3, 3, -9, -9]
    if like == "yolov5":
        anchors = np.array([(10, 13), (16, 30), (33, 23)])
        half = np.sqrt(np.array([20, 26]) / anchors) / 2
        outputs["0"][0, :, 4, 5, 2:4] = np.log(half / (1 - half))
    head = FAMILIES["yolov5-raw"].open(tuple("012"), (128, 128))
    assert (head.contradiction(outputs) is not None) == contradicts
