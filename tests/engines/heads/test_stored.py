"""Heads against the answers of their own families, which ../shared stores beside each file."""

import json

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image
from tests.engines import reference
from tests.engines.heads.expected import File, class_map, sampled
from tests.rapidocr import OPTIONS, PREPROCESS, TEXT_MODEL, off, program

from fovea_engines.evaluation.observe import Observer
from fovea_engines.heads.presets import PRESETS, default_preprocess
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.heads.registry import FAMILIES
from fovea_engines.heads.text import PpOcrDetection
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import corners
from fovea_engines.results.skeleton import PERSON
from fovea_engines.session import TensorSpec
from fovea_preprocess.letterbox import fit

pytestmark = pytest.mark.real

DETECTORS = {
    "centerface": "centerface",
    "dfine": "rtdetr",
    "dfine-bare": "rtdetr-raw",
    "efficientnms": "efficientnms",
    "hf-detr": "detr",
    "hf-rtdetr": "rtdetr-raw",
    "libreyolo-dfine": "rtdetr-raw",
    "libreyolo-yolo9t": "libreyolo-yolo9",
    "mmdeploy": "mmdeploy",
    "nanodet-m-416": "nanodet",
    "paddle": "paddle",
    "picodet": "picodet",
    "ppyoloe": "ppyoloe",
    "retinaface-mnet025": "retinaface",
    "rfdetr": "rfdetr",
    "rfdetr-keypoints": "rfdetr-keypoints",
    "rfdetr-seg": "rfdetr-seg",
    "rtdetr-clothes": "rtdetr",
    "rtdetrv2": "rtdetr",
    "rtdetrv2-bare": "rtdetr-raw",
    "rtmdet": "rtmdet",
    "scrfd-500m": "scrfd",
    "tf-od": "tf-detection",
    "ultraface-rfb-320": "ultraface",
    "ultralytics-rtdetr": "ultralytics-rtdetr",
    "ultralytics-rtdetr-clothes": "ultralytics-rtdetr",
    "yolo11-dynamic": "yolov8",
    "yolo11-obb": "yolov8-obb",
    "yolo11-obb-nometa": "yolov8-obb",
    "yolo11-pose": "yolov8-pose",
    "yolo11-seg": "yolov8-seg",
    "yolo11-seg-nometa": "yolov8-seg",
    "yolo26-not-end2end": "yolov8",
    "yolo26-obb": "yolov10-obb",
    "yolo26-pose": "yolov10-pose",
    "yolo26-seg": "yolov10-seg",
    "yolo5face-500m": "yolov5-face",
    "yolonas": "yolo-nas",
    "yolonas-flat": "yolonas-flat",
    "yolonas-obb": "yolo-nas-obb",
    "yolov6-clothes": "yolov6",
    "yolov6-end2end": "efficientnms",
    "yolov8n-pose": "yolov8-pose",
    "yolov8n-seg-320": "yolov8-seg",
    "yolox-nano-decoded": "yolox-decoded",
    "yunet-n-dynamic": "yunet",
}
UNDECIDED = {
    "picodet": ("rtmdet", "picodet"),
    "ppyoloe": ("yolo-nas", "ppyoloe"),
    "rtmdet": ("rtmdet", "picodet"),
}
"""What the numbers of a file leave without its metadata, where that is not its family alone."""


@pytest.mark.parametrize("name", DETECTORS)
def test_its_rows_are_those_of_its_family(shared, name):
    file, family = File(shared, name), DETECTORS[name]
    told, bare = file.recognise(), file.recognise(metadata=False)
    assert told.family == family
    if name in UNDECIDED:
        assert {*UNDECIDED[name]} <= {bare.family, *bare.open}
    else:
        assert bare.family == family
    if told.task == "pose":
        assert told.skeleton == PERSON
    # As an engine is opened: by its family, and by what is declared of its outputs.
    again = recognise(file.inputs, file.outputs, {}, family)
    assert (again.outputs, again.task) == (told.outputs, told.task)
    file.assert_expected(told)


@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "no metadata"])
@pytest.mark.parametrize(
    ("name", "family", "share"),
    [
        ("deeplabv3-mnv2", "deeplab", 1.0),
        # torchvision and Pillow round some levels of the resized image differently.
        ("hf-segformer", "semantic", 0.995),
        ("yolo26-sem", "class-map", 1.0),
    ],
)
def test_classes_of_pixels_are_those_of_the_family(shared, name, family, share, metadata):
    file = File(shared, name)
    told = file.recognise(metadata=metadata)
    assert (told.family, told.task) == (family, "semantic")
    equal = [
        (found.pixels() == class_map(stored["class_map"])).ravel()
        for _, stored, found, _ in file.decoded(told)
    ]
    assert np.concatenate(equal).mean() >= share


def test_u2net_finds_what_rembg_finds(shared):
    file = File(shared, "u2netp")
    told = file.recognise()
    assert (told.family, told.task) == ("u2net", "saliency")
    for shape, stored, found, inside in file.decoded(told):
        want = stored["saliency"]
        assert sampled(inside.values) == pytest.approx(np.array(want["grid16_yx"]), abs=1e-3)
        assert inside.values.mean() == pytest.approx(want["mean"], abs=1e-4)
        alpha = found.pixels()
        assert alpha.shape == shape
        assert (alpha.min(), alpha.max()) == pytest.approx((0, 1), abs=0.02)
        assert alpha.mean() == pytest.approx(want["mean"], abs=0.01)


def test_depths_of_yolo26_are_those_of_its_family_and_decoded_on_request_without_metadata(shared):
    file = File(shared, "yolo26-depth")
    told = file.recognise()
    assert (told.family, told.task) == ("yolo-depth", "depth")
    for _, stored, found, _ in file.decoded(told):
        want, metres = stored["depth"], found.pixels()
        assert sampled(metres) == pytest.approx(np.array(want["grid16_yx"]), rel=1e-3)
        assert (metres.min(), metres.max()) == pytest.approx((want["min"], want["max"]), rel=1e-3)
    bare = file.recognise(metadata=False)
    assert bare.family is None
    assert "--head depth or --head yolo-depth" in bare.reason
    assert file.recognise("yolo-depth", metadata=False).family == "yolo-depth"


@pytest.mark.parametrize(
    ("name", "bare", "family", "first", "score"),
    [
        # torchvision cuts the fraction of the longer side off, and its own program rounds.
        ("mobilenetv2", "classifier-logits", "classifier-logits", 3, 1e-2),
        ("yolo11-cls", "classifier", "yolo-classifier", 5, 1e-3),
        ("pplcnet-orientation", "classifier", "classifier", 5, 1e-3),
    ],
)
def test_classes_are_those_of_the_family(shared, name, bare, family, first, score):
    file = File(shared, name)
    told = file.recognise()
    assert told.family == family
    unnamed = file.recognise(metadata=False)
    assert unnamed.family == bare
    if bare != family:
        assert "a guess" in unnamed.preprocess_from
        told = file.recognise(family, metadata=False)
    for _, rows, found, _ in file.decoded(told, PredictOptions(top_k=first)):
        assert found.class_ids.tolist() == [row["class_id"] for row in rows[:first]]
        assert found.scores == pytest.approx([row["score"] for row in rows[:first]], abs=score)


def test_scores_of_mobilenet_are_exact_for_an_image_that_is_rounded_as_its_program_does(shared):
    file = File(shared, "mobilenetv2")
    told, spec = file.recognise(), file.spec("classifier-logits")
    assert (told.task, told.num_classes) == ("classify", 1000)
    assert spec.crop_ratio == pytest.approx(1 / 0.875)
    preset = default_preprocess(None, file.inputs, {}, trained=PRESETS["imagenet"])
    assert preset == default_preprocess("classifier", file.inputs, {})
    head = open_head(told, file.inputs)
    for pixels, rows in file.images.values():
        ratio = round(spec.height * spec.crop_ratio) / min(pixels.shape[:2])
        sides = [round(side * ratio) for side in pixels.shape[1::-1]]
        image = Image.fromarray(pixels).resize(sides, Image.Resampling.BILINEAR)
        left, top = (round((side - spec.height) / 2) for side in image.size)
        image = image.crop((left, top, left + spec.width, top + spec.height))
        row = ((np.asarray(image) * spec.scale - spec.mean) / spec.std).transpose(2, 0, 1)[None]
        [logits] = file.session.run(None, {"input": row.astype(np.float32)})
        found = head.decode({"output": logits}, 0, PredictOptions())
        assert found.class_ids.tolist() == [row["class_id"] for row in rows]
        assert found.scores == pytest.approx([row["score"] for row in rows], abs=1e-3)


def test_lines_on_photographs_are_those_that_rapidocr_stored(shared, monkeypatch):
    shapes, _ = program(monkeypatch)
    file = File(shared, "ppocr-det", TEXT_MODEL)
    # It takes images of every size unchanged.
    file.graph = onnx.load(TEXT_MODEL)
    file.inputs = graph_inputs(file.graph)
    options = PredictOptions(conf=OPTIONS["box_thresh"])
    for pixels, rows in file.images.values():
        size = shapes(pixels).shape[2:]
        trained = {"fit": "stretch", **PREPROCESS}
        spec = default_preprocess("ppocr-det", file.inputs, {}, size, trained)
        outputs, where = file.run(pixels, spec)
        head = PpOcrDetection.open(tuple(outputs), size)
        found = head.decode(outputs, 0, options).to_source(where)
        assert len(found) == len(rows)
        edge = np.array(pixels.shape[1::-1]) - 1
        for row in rows:
            far, which = off(np.array(row["polygon"]), corners(found.rotated).clip(0, edge))
            # It cuts off fractions of pixels before a line is grown, and after.
            assert far <= 2
            assert found.scores[which] == pytest.approx(row["score"], abs=1e-3)


def test_the_metadata_of_libreyolo_says_where_an_image_lies(shared):
    file = File(shared, "libreyolo-yolo9t")
    assert file.spec("libreyolo-yolo9").anchor == "top-left"
    file.metadata["letterbox_pad"] = "center"
    spec = file.spec("libreyolo-yolo9")
    # LibreYOLO 1.6 cuts the fraction off there, too: 427 * .5 is 213.5.
    where = fit(spec, 640, 427)
    assert (where.scaled_width, where.scaled_height) == (320, 213)
    assert (where.offset_x, where.offset_y) == (0, 53)


@pytest.mark.parametrize("model", reference.MODELS)
def test_grids_are_decoded_as_the_independent_reference_does(shared, model):
    """The best boxes are stored, and those of low scores are suppressed by brute force."""
    family = reference.MODELS[model]
    graph = load(shared / "models" / f"{model}.onnx").proto
    for metadata in (metadata_of(graph), {}):
        shapes = graph_inputs(graph), graph_outputs(graph)
        told = recognise(*shapes, metadata, observe=Observer(graph))
        assert told.family == family
    session = onnxruntime.InferenceSession(
        shared / "models" / f"{model}.onnx", providers=["CPUExecutionProvider"]
    )
    taken = session.get_inputs()[0]
    size = tuple(taken.shape[2:])
    head = FAMILIES[family].open(("out",), size)
    stored = json.loads(reference.STORED.read_text())[model]
    for name in reference.IMAGES:
        image = cv2.imread(str(shared / "data" / name))
        tensor, scale, left, top = reference.letterbox(image, *size, family)
        raw = session.run(None, {taken.name: tensor})[0]
        for dtype in (np.float32, np.float16) if name == "bus.jpg" else (np.float32,):
            found = head.decode({"out": raw.astype(dtype)}, 0, PredictOptions())
            edge = [image.shape[1], image.shape[0]] * 2
            boxes = np.clip((found.boxes - [left, top, left, top]) / scale, 0, edge)
            assert_same(boxes, found, stored[name])
    low = head.decode({"out": raw}, 0, PredictOptions(conf=0.01, iou=0.5, max_det=3000))
    candidates = reference.decode(raw[0], family, *size, 0.01)
    kept = reference.suppress(candidates, 0.5) if family != "yolov10" else range(len(candidates))
    want = np.array([candidates[i] for i in kept])
    assert low.boxes == pytest.approx(want[:, :4], abs=0.01)
    assert low.scores == pytest.approx(want[:, 4], abs=1e-5)
    assert low.class_ids.tolist() == want[:, 5].tolist()
    for array in low.arrays:
        while array is not None:  # no result keeps the output alive
            assert array.nbytes < raw.nbytes / 4
            array = array.base
    spec = default_preprocess(family, [TensorSpec("images", "float32", (-1, 3, *size))], {})
    expected = ("BGR", 1.0, "top-left") if family == "yolox" else ("RGB", 1 / 255, "center")
    assert (spec.channels, spec.scale, spec.anchor, spec.pad) == (*expected, 114)


def assert_same(boxes, found, expected):
    assert len(found) == len(expected)
    left = list(zip(boxes.tolist(), found.scores, found.class_ids, strict=True))
    for want in expected:
        alike = [row for row in left if row[2] == want["class_id"]]
        best = max(alike, key=lambda row: reference.overlap(row[0], want["box"]))
        assert best[1] == pytest.approx(want["score"], abs=0.02)
        assert reference.overlap(best[0], want["box"]) > 0.9
        left.remove(best)
