"""Files of `../shared/models/more`, and a stand-in for YOLOS, against plain arithmetic in numpy."""

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from PIL import Image
from tests.conftest import SHARED

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation import samples
from fovea_engines.evaluation.agreement.overlap import iou
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.end_to_end import read_order
from fovea_engines.heads.presets import VARIANTS, read_preprocess
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption

MORE, HEADS = SHARED / "models" / "more", SHARED / "models" / "heads"
ALL = PredictOptions(conf=0.05, iou=1.0, max_det=1000)

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MORE.is_dir(), reason=f"{MORE} is not there"),
]


def built(source, tmp_path, **options):
    plan = BuildPlan(source, "m", tmp_path / "models", "onnxruntime", **options)
    return build(plan), tmp_path / "models" / "m" / "1"


def found_by(folder, pixels, options=ALL):
    with Engine.open(folder) as engine:
        return engine.detect(pixels, options)


def corner_padded(pixels, height, width, pad):
    """The image at the top left of (height, width), BGR, 0 to 255, [1, 3, h, w], and its scale."""
    scale = min(height / pixels.shape[0], width / pixels.shape[1])
    sides = int(pixels.shape[1] * scale), int(pixels.shape[0] * scale)
    place = np.full((height, width, 3), pad, np.uint8)
    place[: sides[1], : sides[0]] = cv2.resize(pixels, sides)
    ratio = np.array([sides[0] / pixels.shape[1], sides[1] / pixels.shape[0]])
    return place[None, :, :, ::-1].transpose(0, 3, 1, 2).astype(np.float32), ratio


def assert_rows(found, boxes, scores, pixels, far=0.5):
    order = np.argsort(-scores, kind="stable")
    sides = np.array([pixels.shape[1], pixels.shape[0]] * 2)
    assert len(found) == len(boxes) > 0
    np.testing.assert_allclose(found.scores, scores[order], atol=1e-4)
    np.testing.assert_allclose(found.boxes, boxes[order].clip(0, sides), atol=far)


def yunet_2021(source, pixels, conf):
    """Boxes, points and scores by priors as fractions of the input, as its demo has them."""
    row, ratio = corner_padded(pixels, 120, 160, 0)
    session = onnxruntime.InferenceSession(source)
    loc, conf_, overlap = session.run(["loc", "conf", "iou"], {"input": row})
    priors, sides = [], np.array([160, 120])
    for stride, least, rows, columns in (
        (8, (10, 16, 24), 15, 20),
        (16, (32, 48), 7, 10),
        (32, (64, 96), 3, 5),
        (64, (128, 192, 256), 1, 2),
    ):
        for y in range(rows):
            for x in range(columns):
                for side in least:
                    middle = (x + 0.5) * stride / 160, (y + 0.5) * stride / 120
                    priors.append([*middle, side / 160, side / 120])
    priors = np.array(priors)
    centre = priors[:, :2] + loc[:, :2] * 0.1 * priors[:, 2:]
    size = priors[:, 2:] * np.exp(loc[:, 2:4] * 0.2)
    boxes = np.concatenate([centre - size / 2, centre + size / 2], 1) * np.tile(sides / ratio, 2)
    points = priors[:, None, :2] + loc[:, 4:].reshape(-1, 5, 2) * 0.1 * priors[:, None, 2:]
    scores = np.sqrt(conf_[:, 1] * overlap[:, 0].clip(0, 1))
    kept = scores >= conf
    return boxes[kept], (points * sides / ratio)[kept], scores[kept]


def test_yunet_of_2021(shared, tmp_path):
    source = MORE / "yunet-2021-120x160.onnx"
    card, folder = built(source, tmp_path)
    assert (card.family, card.labels) == ("yunet-2021", ("face",))
    pixels = samples.sample_image(None, "astronaut.jpg")
    found = found_by(folder, pixels, PredictOptions(conf=0.5, iou=1.0, max_det=1000))
    boxes, points, scores = yunet_2021(source, pixels, 0.5)
    assert_rows(found, boxes, scores, pixels)
    np.testing.assert_allclose(found.keypoints[0, :, :2], points[scores.argmax()], atol=0.5)
    # The face that another detector finds, which shares no number with this one.
    _, other = built(HEADS / "ultraface-rfb-320.onnx", tmp_path / "other")
    face = found_by(other, pixels, PredictOptions(conf=0.9)).boxes[:1]
    assert iou(found.boxes[:1], face)[0, 0] > 0.6


def test_a_name_that_says_its_columns(tmp_path, shared):
    """Nothing on these photographs is a sign of a hand; a lower threshold shows rows."""
    model = onnx.load(MORE / "yolox-handsigns-nms.onnx")
    for weight in model.graph.initializer:
        if weight.name == "main01_score_threshold":
            weight.CopyFrom(numpy_helper.from_array(np.array([0.02], np.float32), weight.name))
    onnx.save(model, tmp_path / "m.onnx")
    card, folder = built(tmp_path / "m.onnx", tmp_path, preprocess=read_preprocess("yolox"))
    assert card.family == "class-first-rows"
    pixels = read_image(shared / "data" / "bus.jpg")
    row, ratio = corner_padded(pixels, 416, 416, 114)
    [rows] = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"images": row})
    rows = rows[rows[:, 2] >= 0.02]
    found = found_by(folder, pixels, PredictOptions(conf=0.02, max_det=1000))
    # YOLOX divides by the ratio before it is rounded, which moves a box by less than a pixel.
    assert_rows(found, rows[:, 3:] / np.tile(ratio, 2), rows[:, 2], pixels, far=1.0)
    order = np.argsort(-rows[:, 2], kind="stable")
    assert (found.class_ids == rows[order, 1]).all()


def test_the_file_as_it_is_asks_for_its_preprocessing(tmp_path):
    says = "--preprocess family .* --preprocess yolox"
    with pytest.raises(InvalidOption, match=says):
        built(MORE / "yolox-handsigns-nms.onnx", tmp_path)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("batchno_classid_score_x1y1x2y2", "image, class, score, x1 y1 x2 y2"),
        ("batchno_classid_x1y1x2y2_score", "image, class, x1 y1 x2 y2, score"),
        ("batch_id_xyxy_cls_conf", "image, x1 y1 x2 y2, class, score"),
        ("image_yxyx_score_label", "image, y1 x1 y2 x2, score, class"),
        ("output", None),
        ("scores", None),
        ("batchno_classid_score", None),
        ("batchno_classid_score_x1y1x2y2_landms", None),
    ],
)
def test_names_that_say_columns(name, columns):
    assert read_order(name) == columns


def yolos(tmp_path, none, lower):
    """A stand-in for YOLOS by transformers: 512 x 864, 91 ids and "none", of DETR's real numbers.

    A trained model is mostly of "none", as here with `none` more than the queries' best on average.
    `lower` is taken from all logits, which leaves a softmax as it is.
    """
    model = onnx.load(HEADS / "hf-detr.onnx")
    graph = model.graph
    [image] = graph.input
    inner = f"{image.name}/small"
    for node in graph.node:
        node.input[:] = [inner if name == image.name else name for name in node.input]
        node.output[:] = ["raw/logits" if name == "logits" else name for name in node.output]
    image.type.tensor_type.shape.dim[2].dim_value = 512
    image.type.tensor_type.shape.dim[3].dim_value = 864
    constants = {
        "scales": np.array([1, 1, 256 / 512, 256 / 864], np.float32),
        "begin": np.array([0]),
        "end": np.array([91]),
        "axis": np.array([2]),
        "none": np.float32(none),
        "lower": np.float32(lower),
        "queries": np.array([1, 50, 1]),
    }
    graph.initializer.extend(numpy_helper.from_array(np.array(v), k) for k, v in constants.items())
    resize = helper.make_node("Resize", [image.name, "", "scales"], [inner], mode="linear")
    graph.node.insert(0, resize)
    graph.node.extend(
        [
            helper.make_node("Slice", ["raw/logits", "begin", "end", "axis"], ["classes"]),
            helper.make_node("ReduceMax", ["classes"], ["best"], axes=[2]),
            helper.make_node("ReduceMean", ["best"], ["usual"], axes=[1]),
            helper.make_node("Add", ["usual", "none"], ["one"]),
            helper.make_node("Expand", ["one", "queries"], ["last"]),
            helper.make_node("Concat", ["classes", "last"], ["all"], axis=2),
            helper.make_node("Sub", ["all", "lower"], ["logits"]),
        ]
    )
    onnx.save(model, tmp_path / "yolos.onnx")
    return tmp_path / "yolos.onnx"


@pytest.mark.parametrize(("none", "lower"), [(-0.5, 30), (0.5, 0), (2, 30)])
def test_yolos_is_a_softmax_and_not_rtdetr(shared, tmp_path, none, lower):
    source = yolos(tmp_path, none, lower)
    card, folder = built(source, tmp_path, preprocess=VARIANTS["family"])
    assert card.family == "detr"
    pixels = read_image(shared / "data" / "bus.jpg")
    found = found_by(folder, pixels)
    small = np.asarray(Image.fromarray(pixels).resize((864, 512), Image.Resampling.BILINEAR))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    feed = ((small / 255 - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)
    session = onnxruntime.InferenceSession(source)
    logits, boxes = session.run(["logits", "pred_boxes"], {"pixel_values": feed})
    shares = np.exp(logits[0] - logits[0].max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    scores = shares[:, :-1].max(1)
    kept = scores >= ALL.conf
    centre, half = boxes[0, kept, :2], boxes[0, kept, 2:] / 2
    corners = np.concatenate([centre - half, centre + half], 1) * (810, 1080, 810, 1080)
    assert_rows(found, corners, scores[kept], pixels)
    order = np.argsort(-scores[kept], kind="stable")
    assert (found.class_ids == shares[kept, :-1].argmax(1)[order]).all()


def test_sigmoids_are_not_taken_for_a_softmax():
    for name in ("hf-rtdetr", "dfine-bare", "rtdetrv2-bare"):
        found = recognise_graph(onnx.load(HEADS / f"{name}.onnx"))[0]
        assert found.family == "rtdetr-raw", found.reason
