"""Heads with scores and boxes in tensors of their own, on real files."""

import numpy as np
import pytest
from tests.engines.heads.by_hand import opened, told
from tests.engines.heads.expected import File

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.agreement.overlap import iou
from fovea_engines.evaluation.observe import Observer
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

pytestmark = pytest.mark.real

LARGE, SMALL = (640, 640), (320, 320)
FILES = {
    "centerface": ("centerface", LARGE, {"options": PredictOptions(iou=0.3)}),
    "nanodet-m-416": (
        "nanodet",
        None,
        {
            "options": PredictOptions(iou=0.6, agnostic=True),
            "trained": {"rounding": "down"},
        },
    ),
    "retinaface-mnet025": ("retinaface", LARGE, {}),
    "scrfd-500m": ("scrfd", LARGE, {}),
    "ultraface-rfb-320": ("ultraface", None, {"options": PredictOptions(iou=0.3)}),
    "yolo5face-500m": (
        "yolov5-face",
        SMALL,
        {"trained": {"anchor": "top-left", "pad": 0}},
    ),
    "yunet-n-dynamic": ("yunet", LARGE, {}),
}
"""Family, size, and how the stored rows were made."""

USUAL = PredictOptions(iou=0.45)


@pytest.fixture(scope="module", params=FILES)
def case(request, shared):
    """A file of a fixed size, its head, and its outputs for bus.jpg."""
    family, size, how = FILES[request.param]
    file = File(shared, request.param)
    if size is not None:
        file.graph = normalise(file.graph, size, lambda note: None)
        file.inputs, file.outputs = graph_inputs(file.graph), graph_outputs(file.graph)
    told = file.recognise()
    assert told.family == family
    pixels, _ = file.images["bus.jpg"]
    outputs, _ = file.run(pixels, file.spec(family, how.get("trained")))
    return file, told, open_head(told, file.inputs), outputs, {"options": USUAL, **how}


def test_rows_are_the_stored_ones(case):
    file, told, _, _, how = case
    file.assert_expected(**how)
    assert told.labels == (None if told.num_classes == 80 else ("face",))


def test_it_is_recognised_again_without_numbers(case):
    """As an engine is opened: by its family, and by what is declared of its outputs."""
    file, told, *_ = case
    again = recognise(file.inputs, file.outputs, {}, told.family)
    assert (again.outputs, again.num_classes) == (told.outputs, told.num_classes)
    open_ends = [TensorSpec(t.name, t.dtype, (-1, -1, *t.shape[2:])) for t in file.outputs]
    if len(file.outputs[0].shape) == 3 and told.family != "yolov5-face":
        assert recognise(file.inputs, open_ends, {}, told.family).outputs == told.outputs


def test_rows_of_a_batch_are_independent(case):
    *_, head, outputs, _ = case
    alone = head.decode(outputs, 0, USUAL)
    two = {name: np.concatenate([array * 0, array]) for name, array in outputs.items()}
    within = head.decode(two, 1, USUAL)
    assert len(alone) > 0
    assert within.boxes.tolist() == alone.boxes.tolist()
    assert within.scores.tolist() == alone.scores.tolist()


def test_half_precision_is_read(case):
    *_, head, outputs, _ = case
    whole = head.decode(outputs, 0, USUAL)
    half = {name: array.astype(np.float16) for name, array in outputs.items()}
    found = head.decode(half, 0, USUAL)
    assert found.class_ids.tolist() == whole.class_ids.tolist()
    assert found.boxes == pytest.approx(whole.boxes, abs=2)
    assert found.scores == pytest.approx(whole.scores, abs=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_numbers_give_no_boxes(case, bad):
    *_, head, outputs, _ = case
    broken = {name: np.full_like(array, bad) for name, array in outputs.items()}
    assert len(head.decode(broken, 0, PredictOptions(conf=0))) == 0
    random = np.random.default_rng(7)
    for name, array in outputs.items():
        broken[name] = np.where(random.random(array.shape) < 0.001, np.float32(bad), array)
    found = head.decode(broken, 0, PredictOptions(conf=0.01))
    assert len(found) > 0
    assert np.isfinite(found.boxes).all()


def test_columns_are_those_of_the_boxes(case):
    *_, head, outputs, _ = case
    table = head.columns(outputs)
    assert table.shape[1] > 1000
    assert np.isfinite(table).all()


@pytest.mark.parametrize("change", [lambda a: a * 100, lambda a: np.log(a + 1e-6)])
def test_scores_that_are_none_exclude_the_family(case, change):
    *_, head, outputs, _ = case
    planted = {name: array.copy() for name, array in outputs.items()}
    if head.family == "yolov5-face":
        [rows] = planted.values()
        rows[..., [4, 15]] = change(rows[..., [4, 15]])
    for name in head.outputs:
        if outputs[name].min() >= 0 and outputs[name].max() <= 1:
            planted[name] = change(outputs[name])
    assert "no probability" in head.contradiction(planted)


def small_priors(shared):
    return shared / "models" / "more" / "retinaface-1mb.onnx"


SMALL_PRIORS = {8: (10, 20), 16: (32, 64), 32: (128, 256)}
NO_FACE = "000000000724.jpg"
FACES = ("bus.jpg", "coco64/val/000000003934.jpg", "coco64/val/000000001296.jpg")


def one_by_one(outputs, least):
    """Boxes and scores of faces of a 640x640 input, before suppression, written plainly."""
    loc, conf = outputs["loc"][0], outputs["conf"][0]
    number = 0
    for stride, sides in SMALL_PRIORS.items():
        for row in range(640 // stride):
            for column in range(640 // stride):
                for side in sides:
                    x, y, w, h = loc[number].tolist()
                    score = conf[number, 1]
                    number += 1
                    if score < least:
                        continue
                    cx = (column + 0.5) * stride + 0.1 * x * side
                    cy = (row + 0.5) * stride + 0.1 * y * side
                    half = np.exp([0.2 * w, 0.2 * h]) * side / 2
                    yield [cx - half[0], cy - half[1], cx + half[0], cy + half[1]], score


@pytest.fixture(scope="module")
def faces(shared, tmp_path_factory):
    """Engines of two groups' detectors of faces, the RetinaFace of smaller priors first."""
    folder = tmp_path_factory.mktemp("faces")
    small, other = small_priors(shared), shared / "models" / "heads" / "yunet-n-dynamic.onnx"
    build(BuildPlan(small, "small", folder, "onnxruntime", preprocess={"anchor": "top-left"}))
    build(BuildPlan(other, "yunet", folder, "onnxruntime", size=LARGE))
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


@pytest.mark.parametrize("image", FACES)
def test_its_boxes_are_those_of_a_plain_decoding(faces, shared, image):
    engine, _ = faces
    outputs = engine.outputs_of(read_image(shared / "data" / image))
    found = engine.head.decode(outputs, 0, PredictOptions(conf=0.6, iou=1.0, max_det=1000))
    have = sorted(np.column_stack([found.scores, found.boxes]).tolist())
    want = sorted([score, *box] for box, score in one_by_one(outputs, 0.6))
    assert len(want) > 0
    assert np.array(have) == pytest.approx(np.array(want), abs=0.01)


def test_nothing_tells_the_priors_where_no_face_is(shared, tmp_path):
    """A family that is named is taken."""
    file = File(shared, "retinaface-mnet025", small_priors(shared))
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
    plan = BuildPlan(small_priors(shared), "faces", tmp_path / "models", "onnxruntime", **given)
    assert build(plan).family == "retinaface-1mb"


def test_a_plate_has_its_corners():
    """Decoded plainly, prior by prior, from numbers of one's own: there is no trained file here."""
    random, side, priors = (
        np.random.default_rng(3),
        320,
        {8: (16, 32), 16: (64, 128), 32: (256, 512)},
    )
    count = sum(2 * (side // stride) ** 2 for stride in priors)
    loc, landm = (random.normal(0, 1, (count, columns)).astype(np.float32) for columns in (4, 8))
    plate = np.zeros(count, np.float32)
    plate[[5, 3301, 4000, count - 1]] = 0.9, 0.8, 0.7, 0.6
    outputs = {"loc": loc, "conf": np.stack([1 - plate, plate], axis=1), "landm": landm}
    outputs = {name: table[None] for name, table in outputs.items()}
    want, number = [], 0
    for stride, sides in priors.items():
        for row in range(side // stride):
            for column in range(side // stride):
                for prior in sides:
                    at, number = number, number + 1
                    if not plate[at]:
                        continue
                    middle = np.array([column + 0.5, row + 0.5]) * stride
                    centre = middle + 0.1 * loc[at, :2] * prior
                    half = np.exp(0.2 * loc[at, 2:]) * prior / 2
                    points = [middle + 0.1 * landm[at, n : n + 2] * prior for n in (0, 2, 4, 6)]
                    want.append([plate[at], *(centre - half), *(centre + half), *np.ravel(points)])
    found = told(outputs, family="retinaface-plate", size=(side, side))
    assert found.labels == ("plate",)
    assert found.skeleton.names == ("bottom right", "bottom left", "top left", "top right")
    head = opened(found, (side, side))
    objects = head.decode(outputs, 0, PredictOptions(conf=0.5, iou=1.0))
    corners = objects.keypoints[..., :2].reshape(4, 8)
    have = np.column_stack([objects.scores, objects.boxes, corners])
    assert have == pytest.approx(np.array(sorted(want, reverse=True)), abs=1e-3)
    assert head.decode(outputs, 0, PredictOptions(conf=0.95)).keypoints.shape == (0, 4, 3)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_cells_that_all_say_the_same_tell_nothing_of_priors(noise):
    """So does a network that sees values out of its range, whose boxes go with the cells."""
    random, side = np.random.default_rng(0), 320
    count = sum(2 * (side // stride) ** 2 for stride in (8, 16, 32))
    loc = random.normal((0.3, -0.2, 0.5, 0.1), noise, (count, 4))
    plate = np.full(count, 0.6)
    tables = {
        "loc": loc,
        "conf": np.stack([1 - plate, plate], axis=1),
        "landm": np.zeros((count, 8)),
    }
    outputs = {name: np.float32(table)[None] for name, table in tables.items()}
    named = told(outputs, family="retinaface-plate", size=(side, side))
    assert (named.family, named.unseen) == ("retinaface-plate", True)
    found = told(outputs, size=(side, side))
    assert (found.open, found.unseen) == (("retinaface-plate", "retinaface-plate-large"), True)


def test_a_slim_retinaface_of_four_levels():
    """Decoded plainly, prior by prior: there is no trained file here."""
    priors = {8: (10, 16, 24), 16: (32, 48), 32: (64, 96), 64: (128, 192, 256)}
    random, size = np.random.default_rng(5), (240, 320)
    loc, landm, faces, want = [], [], [], []
    for stride, sides in priors.items():
        for row in range(-(-size[0] // stride)):
            for column in range(-(-size[1] // stride)):
                for prior in sides:
                    box, points = random.normal(0, 1, 4), random.normal(0, 1, 10)
                    loc.append(box)
                    landm.append(points)
                    faces.append(0.3 + random.uniform(0.5) / 2 if random.random() < 0.01 else 0.0)
                    if not faces[-1]:
                        continue
                    middle = np.array([column + 0.5, row + 0.5]) * stride
                    centre = middle + 0.1 * box[:2] * prior
                    half = np.exp(0.2 * box[2:]) * prior / 2
                    marks = [middle + 0.1 * points[n : n + 2] * prior for n in range(0, 10, 2)]
                    want.append([faces[-1], *(centre - half), *(centre + half), *np.ravel(marks)])
    assert len(faces) == 4420
    face = np.array(faces)
    tables = {"loc": loc, "conf": np.stack([1 - face, face], axis=1), "landm": landm}
    outputs = {name: np.float32(table)[None] for name, table in tables.items()}
    found = told(outputs, size=size)
    assert (found.family, found.labels) == ("retinaface-slim", ("face",))
    objects = opened(found, size).decode(outputs, 0, PredictOptions(conf=0.25, iou=1.0))
    have = np.column_stack(
        [objects.scores, objects.boxes, objects.keypoints[..., :2].reshape(-1, 10)]
    )
    assert len(want) > 20
    assert have == pytest.approx(np.array(sorted(want, reverse=True)), abs=1e-3)


@pytest.mark.parametrize("k", [1, 2])
def test_the_priors_of_a_slim_retinaface_are_compared_level_by_level(k):
    """Neighbouring cells find one face, which moves with them where the priors are others'."""
    counts = [3 * 40 * 40, 2 * 20 * 20, 2 * 10 * 10, 3 * 5 * 5]
    loc, face = np.zeros((sum(counts), 4)), np.zeros(sum(counts))
    for row in range(8, 11):
        for column in range(8, 11):
            at = counts[0] + 2 * (20 * row + column) + 1
            face[at] = 0.9
            # The middle of the face is that of cell (9, 9), by a prior of k times 48 pixels.
            loc[at, :2] = (9 - np.array([column, row])) * 16 / (0.1 * 48 * k)
    tables = {"loc": loc, "conf": np.stack([1 - face, face], axis=1)}
    tables["landm"] = np.zeros((sum(counts), 10))
    outputs = {name: np.float32(table)[None] for name, table in tables.items()}
    if k == 1:
        assert told(outputs, size=(320, 320)).family == "retinaface-slim"
    else:
        with pytest.raises(UnsupportedModel, match="sides of its priors are 2 times these"):
            told(outputs, family="retinaface-slim", size=(320, 320))


@pytest.mark.parametrize(
    ("side", "maps"),
    [(128, ((8, 2), (16, 2), (16, 2), (16, 2))), (256, ((16, 2), (32, 6))), (192, ((4, 1),))],
)
def test_blazeface_is_decoded_as_mediapipe_does(side, maps):
    """Layer by layer, each box with its anchor; the values are in pixels of the input."""
    middles = []
    # Layers of one stride are one, whose anchors stand together in each cell.
    for stride in dict.fromkeys(stride for stride, _ in maps):
        anchors = sum(count for one, count in maps if one == stride)
        for y in range(side // stride):
            for x in range(side // stride):
                middles += [((x + 0.5) * stride, (y + 0.5) * stride)] * anchors
    random = np.random.default_rng(side)
    values = random.uniform(5, 40, (len(middles), 16)).astype(np.float32)
    logits = np.full((len(middles), 1), -30, np.float32)
    logits[[3, 700, -1], 0] = 5, 2, 1
    want = []
    for at in (3, 700, -1):
        middle, half = np.array(middles[at]), values[at, 2:4] / 2
        centre = middle + values[at, :2]
        box = [*(centre - half), *(centre + half)]
        points = [middle + values[at, n : n + 2] for n in range(4, 16, 2)]
        want.append([1 / (1 + np.exp(-logits[at, 0])), *box, *np.ravel(points)])
    outputs = {"regressors": values[None], "classificators": logits[None]}
    found = told(outputs, size=(side, side))
    assert (found.family, found.labels) == ("blazeface", ("face",))
    head = opened(found, (side, side))
    objects = head.decode(outputs, 0, PredictOptions(iou=1.0))
    points = objects.keypoints[..., :2].reshape(3, 12)
    have = np.column_stack([objects.scores, objects.boxes, points])
    assert have == pytest.approx(np.array(want), abs=1e-3)
    assert head.decode(outputs, 0, PredictOptions(conf=0.999)).keypoints.shape == (0, 6, 3)
    after = outputs | {"classificators": 1 / (1 + np.exp(-outputs["classificators"]))}
    assert "no logits" in head.contradiction(after)
