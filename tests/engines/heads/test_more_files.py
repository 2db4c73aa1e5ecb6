"""Files of `../shared/models/more` against plain arithmetic in numpy."""

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from PIL import Image
from tests.conftest import SHARED
from tests.engines.heads.expected import File

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation import samples
from fovea_engines.evaluation.agreement.overlap import iou
from fovea_engines.evaluation.observe import Observer, recognise_graph
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.presets import default_preprocess, read_preprocess
from fovea_engines.heads.recognise import recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption
from fovea_preprocess.preprocessor import Preprocessor

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


def test_yunet_of_2021(shared, tmp_path):
    source = MORE / "yunet-2021-120x160.onnx"
    card, folder = built(source, tmp_path)
    assert (card.family, card.labels) == ("yunet-2021", ("face",))
    pixels = samples.sample_image(None, "astronaut.jpg")
    row, ratio = corner_padded(pixels, 120, 160, 0)
    names, options = ("loc", "conf", "iou"), PredictOptions(conf=0.5, iou=1.0, max_det=1000)
    outputs = onnxruntime.InferenceSession(source).run(names, {"input": row})
    with Engine.open(folder) as engine:
        inside = engine.head.decode(dict(zip(names, outputs, strict=True)), 0, options)
        found = engine.detect(pixels, options)
    assert_rows(found, inside.boxes / np.tile(ratio, 2), inside.scores, pixels)
    points = inside.keypoints[0, :, :2] / ratio
    np.testing.assert_allclose(found.keypoints[0, :, :2], points, atol=0.5)
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


SMALL = MORE / "retinaface-1mb.onnx"
NO_FACE = "000000000724.jpg"
FACES = ("bus.jpg", "coco64/val/000000003934.jpg", "coco64/val/000000001296.jpg")


@pytest.fixture(scope="module")
def faces(shared, tmp_path_factory):
    """Engines of two groups' detectors of faces, the RetinaFace of smaller priors first."""
    folder = tmp_path_factory.mktemp("faces")
    other = shared / "models" / "heads" / "yunet-n-dynamic.onnx"
    build(BuildPlan(SMALL, "small", folder, "onnxruntime", preprocess={"anchor": "top-left"}))
    build(BuildPlan(other, "yunet", folder, "onnxruntime", size=(640, 640)))
    with Engine.open(folder / "small" / "1") as one, Engine.open(folder / "yunet" / "1") as two:
        yield one, two


def test_a_retinaface_of_other_priors_is_told_by_its_numbers(faces):
    """Its names and shapes are those of RetinaFace."""
    card = faces[0].card
    assert card.family == "retinaface-1mb"
    assert "not retinaface (neighbouring cells" in card.reason
    assert "0.51 times" in card.reason


@pytest.mark.parametrize("image", FACES)
def test_another_group_finds_the_same_faces(faces, shared, image):
    pixels = read_image(shared / "data" / image)
    found, others = (one.detect(pixels, PredictOptions(conf=0.6, iou=0.3)) for one in faces)
    overlaps = iou(found.boxes, others.boxes).max(axis=1)
    assert len(found) > 0
    assert np.median(overlaps) > 0.7, overlaps


def test_nothing_tells_the_priors_where_no_face_is(shared, tmp_path):
    """A family that is named is taken."""
    file = File(shared, "retinaface-mnet025", SMALL)
    (tmp_path / NO_FACE).symlink_to(shared / "data" / "coco64" / "val" / NO_FACE)
    seen = Observer(file.graph, images=tmp_path)
    told = recognise(file.inputs, file.outputs, {}, observe=seen)
    assert told.open == ("retinaface", "retinaface-1mb")
    assert told.unseen
    named = recognise(file.inputs, file.outputs, {}, "retinaface-1mb", seen)
    assert named.family == "retinaface-1mb"


def test_a_build_looks_at_its_own_photographs_where_no_face_is(shared, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    (images / NO_FACE).symlink_to(shared / "data" / "coco64" / "val" / NO_FACE)
    given = {"images": images, "preprocess": {"anchor": "top-left"}}
    plan = BuildPlan(SMALL, "faces", tmp_path / "models", "onnxruntime", **given)
    assert build(plan).family == "retinaface-1mb"


SOURCE, SIDE, CONF = MORE / "deimv2-atto-int8.onnx", 320, 0.25
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
WAYS = ("family", "mean-std", "letterboxed", "letterboxed-mean-std")


@pytest.fixture(scope="module")
def batched(tmp_path_factory):
    """The same file in the form of DEIMv2's own export, which has the batch's axis."""
    model = onnx.load(SOURCE)
    for node in model.graph.node:
        if node.op_type == "Squeeze" and node.output[0] in ("labels", "boxes", "scores"):
            node.op_type, _ = "Identity", node.input.pop()
    for output in model.graph.output:
        output.type.tensor_type.shape.dim.insert(
            0, onnx.TensorShapeProto.Dimension(dim_param="batch")
        )
    path = tmp_path_factory.mktemp("deimv2") / "batched.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module", params=["squeezed", "batched"])
def source(request):
    return SOURCE if request.param == "squeezed" else request.getfixturevalue("batched")


def own_input(pixels, way):
    """The input by onnx_inf.py; torch_inf.py stretches. And the place of the image, and ratios."""
    image = Image.fromarray(pixels)
    ratio = min(SIDE / image.width, SIDE / image.height)
    place, ratios = (0, 0), (SIDE / image.width, SIDE / image.height)
    whole = image.resize((SIDE, SIDE), Image.BILINEAR)
    if way.startswith("letterboxed"):
        sides = int(image.width * ratio), int(image.height * ratio)
        place, ratios = ((SIDE - sides[0]) // 2, (SIDE - sides[1]) // 2), (ratio, ratio)
        whole = Image.new("RGB", (SIDE, SIDE))
        whole.paste(image.resize(sides, Image.BILINEAR), place)
    row = np.asarray(whole) / 255
    if way.endswith("mean-std"):
        row = (row - MEAN) / STD
    return row.transpose(2, 0, 1)[None].astype(np.float32), place, ratios


def images(shared):
    val = sorted((shared / "data" / "coco64" / "val").glob("*.jpg"))
    return [read_image(path) for path in (shared / "data" / "bus.jpg", *val[:15])]


@pytest.mark.parametrize("way", WAYS)
def test_inputs_are_those_of_its_own_programs(shared, way):
    inputs = [TensorSpec("images", "float32", (-1, 3, SIDE, SIDE))]
    spec = default_preprocess("rtdetr", inputs, {}, trained=read_preprocess(way))
    for pixels in images(shared):
        row = np.empty((1, 3, SIDE, SIDE), np.float32)
        Preprocessor(spec)(pixels, row[0])
        np.testing.assert_allclose(row, own_input(pixels, way)[0], atol=1e-5)


# What comes before the network, and the axis of its outputs, have nothing to do with one another.
@pytest.mark.parametrize(
    ("source", "way"), [("squeezed", "family"), ("batched", "letterboxed")], indirect=["source"]
)
def test_rows_are_those_of_its_own_programs(shared, source, tmp_path, way):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    given = {"preprocess": read_preprocess(way), "images": tmp_path / "images"}
    assert build(BuildPlan(source, "m", tmp_path, "onnxruntime", **given)).family == "rtdetr"
    session, rows = onnxruntime.InferenceSession(SOURCE), 0
    with Engine.open(tmp_path / "m" / "1") as engine:
        for pixels in images(shared):
            row, place, ratios = own_input(pixels, way)
            feeds = {"images": row, "orig_target_sizes": np.array([[SIDE, SIDE]])}
            labels, boxes, scores = session.run(["labels", "boxes", "scores"], feeds)
            order = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores >= CONF)]
            found = engine.detect(pixels, PredictOptions(conf=CONF, max_det=1000))
            edges = np.array([pixels.shape[1], pixels.shape[0]] * 2)
            want = ((boxes[order] - [*place, *place]) / [*ratios, *ratios]).clip(0, edges)
            np.testing.assert_allclose(found.scores, scores[order], atol=1e-4)
            np.testing.assert_allclose(found.boxes, want, atol=0.05)
            assert (found.class_ids == labels[order]).all()
            rows += len(order)
    assert rows > 50


def test_a_build_asks_and_names_every_way(source, tmp_path):
    with pytest.raises(InvalidOption) as asked:
        build(BuildPlan(source, "m", tmp_path, "onnxruntime"))
    for way in WAYS:
        assert f"--preprocess {way} (it finds" in str(asked.value)


def test_sizes_beside_the_image_are_no_torchvision():
    found = recognise_graph(onnx.load(SOURCE))[0]
    assert found.family == "rtdetr"
    against = {one.family: one.against for one in found.verdicts}
    assert "orig_target_sizes" in against["torchvision"]
