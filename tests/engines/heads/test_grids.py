"""Heads that decode the cells of a grid, against the formula of each lineage in a plain loop."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.engines.heads.by_hand import excluded, opened, told

from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.results.options import PredictOptions
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import UnsupportedModel

CLASSES, LEAST = 3, 0.25
THREE, FOUR = (8, 16, 32), (8, 16, 32, 64)


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def around(cx, cy, w, h):
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


# Each gets the numbers of a box, column and row of its cell, the stride and the box's anchor, and
# gives the corners, the scores of the classes, and perhaps points.


def yolox(n, x, y, s, anchor):
    box = around((n[0] + x) * s, (n[1] + y) * s, math.exp(n[2]) * s, math.exp(n[3]) * s)
    return box, n[4] * n[5:], ()


def yunet(n, x, y, s, anchor):
    box, *_ = yolox(n, x, y, s, anchor)
    return box, n[4:5] * n[5], (n[6:].reshape(5, 2) + np.array([x, y])) * s


def yolo_raw(n, x, y, s, anchor):
    return yolo_fastest_v2(sigmoid(n), x, y, s, anchor)


def yolo_fastest_v2(p, x, y, s, anchor):
    centre = (2 * p[0] - 0.5 + x) * s, (2 * p[1] - 0.5 + y) * s
    box = around(*centre, (2 * p[2]) ** 2 * anchor[0], (2 * p[3]) ** 2 * anchor[1])
    return box, p[4] * p[5:], ()


def yolov4(n, x, y, s, anchor):
    k = {8: 1.2, 16: 1.1, 32: 1.05}[s]
    centre = [(sigmoid(n[at]) * k - (k - 1) / 2 + cell) * s for at, cell in ((0, x), (1, y))]
    return around(*centre, math.exp(n[2]) * anchor[0], math.exp(n[3]) * anchor[1]), n[4] * n[5:], ()


def fastestdet(n, x, y, s, anchor):
    centre = (x + math.tanh(n[0])) * s, (y + math.tanh(n[1])) * s
    box = around(*centre, sigmoid(n[2]) * 192, sigmoid(n[3]) * 128)
    return box, n[4] ** 0.6 * n[5:] ** 0.4, ()


def distribution(n, x, y, s, anchor, centre, shift=0.0):
    """Logits of eight distances to each side, in strides."""
    far = [sum(np.exp(row) * range(8)) / sum(np.exp(row)) * s for row in n[:32].reshape(4, 8)]
    cx, cy = (x + centre) * s + shift, (y + centre) * s + shift
    return (cx - far[0], cy - far[1], cx + far[2], cy + far[3]), n[32:], ()


def scrfd(n, x, y, s, anchor):
    box = (x - n[0]) * s, (y - n[1]) * s, (x + n[2]) * s, (y + n[3]) * s
    return box, n[4:5], (n[5:].reshape(5, 2) + np.array([x, y])) * s


def prior(n, x, y, s, side):
    cx, cy = (x + 0.5) * s, (y + 0.5) * s
    size = math.exp(0.2 * n[2]) * side, math.exp(0.2 * n[3]) * side
    points = np.array([cx, cy]) + 0.1 * n[5:].reshape(-1, 2) * side
    return around(cx + 0.1 * n[0] * side, cy + 0.1 * n[1] * side, *size), n[4:5], points


def prior_2021(n, x, y, s, side):
    box, score, points = prior(n[:-1], x, y, s, side)
    return box, np.sqrt(score * n[-1]), points


def blazeface(n, x, y, s, anchor):
    middle = np.array([(x + 0.5) * s, (y + 0.5) * s])
    return around(*(middle + n[:2]), *n[2:4]), sigmoid(n[4:5]), middle + n[5:].reshape(6, 2)


def centerface(n, x, y, s, anchor):
    """Height before width, and y before x."""
    w, h = math.exp(n[1]) * s, math.exp(n[0]) * s
    left, top, *last = around((x + 0.5 + n[3]) * s, (y + 0.5 + n[2]) * s, w, h)
    points = [(left + px * w, top + py * h) for py, px in n[5:].reshape(5, 2)]
    return (left, top, *last), n[4:5], points


def in_pixels(n, x, y, s, anchor):
    return around(*n[:4]), n[4] * n[5:6], n[6:].reshape(5, 2)


def flat(levels):
    return np.concatenate([level.reshape(-1, level.shape[-1]) for level in levels])[None]


def one(levels):
    return {"output": flat(levels)}


def scores_first(levels):
    return {"output": np.roll(flat(levels), CLASSES, axis=2)}


def by_kind(levels, *columns):
    """A tensor for each level of each kind of columns, kind after kind."""
    tables = [flat([level])[..., kind] for kind in columns for level in levels]
    return {str(number): table for number, table in enumerate(tables)}


def by_name(levels):
    tables = by_kind(levels, [4], [5], slice(4), slice(6, None)).values()
    names = [f"{kind}_{s}" for kind in ("cls", "obj", "bbox", "kps") for s in THREE]
    return dict(zip(names, tables, strict=True))


def of_anchors(levels, axis):
    return {str(n): np.moveaxis(level, 2, axis)[None] for n, level in enumerate(levels)}


def by_columns(levels):
    """Of a cell x y w h of every anchor, objectness of every anchor, and the classes of all."""
    parts = [
        np.concatenate(
            [level[..., :4].reshape(*level.shape[:2], 12), level[..., 4], level[:, :, 0, 5:]], 2
        )
        for level in levels
    ]
    return {str(n): part[None] for n, part in enumerate(parts)}


def as_map(levels, classes=CLASSES):
    columns = [4, 0, 1, 2, 3, *range(5, 5 + classes)]
    return {"map": levels[0][:, :, 0, columns].transpose(2, 0, 1)[None]}


def ssd(levels):
    table = flat(levels)
    shares = np.concatenate([1 - table[..., 4:5], table[..., 4:5]], axis=2)
    return {"loc": table[..., :4], "conf": shares, "landm": table[..., 5:]}


def ssd_2021(levels):
    [table] = flat(levels)
    shares = np.stack([1 - table[:, 4], table[:, 4]], axis=1)
    return {"loc": table[:, [*range(4), *range(5, 15)]], "conf": shares, "iou": table[:, 15:]}


def maps(levels):
    table = levels[0][:, :, 0].transpose(2, 0, 1)[None]
    return dict(
        zip("abcd", (table[:, 4:5], table[:, :2], table[:, 2:4], table[:, 5:]), strict=True)
    )


def mediapipe(levels):
    table = flat(levels)
    return {"regressors": np.delete(table, 4, axis=2), "classificators": table[..., 4:5]}


@dataclass(frozen=True)
class Lineage:
    """How cells are decoded, and laid out.

    Attributes:
        boxes: anchors of a cell by its stride; whatever `decode` takes.
        columns: of a box; `scores` are its probabilities, and all if they are `logits` in the end.
        shared: columns that the boxes of a cell have in common.
    """

    decode: Callable[..., Any]
    boxes: Mapping[int, Sequence[Any]]
    outputs: Callable[..., Any]
    columns: int = 5 + CLASSES
    scores: slice = field(default_factory=lambda: slice(4, None))
    logits: bool = False
    shared: slice = field(default_factory=lambda: slice(0))
    box: Callable[..., Any] = field(default=lambda random, shape: random.normal(0, 1, shape))
    size: tuple[int, int] = (128, 192)
    floors: bool = False

    def levels(self):
        random = np.random.default_rng(5)
        for stride, anchors in self.boxes.items():
            rows, columns = (
                side // stride if self.floors else -(-side // stride) for side in self.size
            )
            table = self.box(random, (rows, columns, len(anchors), self.columns))
            sure = random.random(table.shape[:3]) < 0.1
            found = random.uniform(0, 0.02, table[..., self.scores].shape)
            found[sure] = random.uniform(0.5, 0.95, found[sure].shape)
            table[..., self.scores] = np.log(found / (1 - found)) if self.logits else found
            table[..., self.shared] = table[:, :, :1, self.shared]
            yield table.astype(np.float32)

    def expected(self, levels):
        for (stride, anchors), level in zip(self.boxes.items(), levels, strict=True):
            for y, x, number in np.ndindex(level.shape[:3]):
                n = level[y, x, number].astype(np.float64)
                box, scores, points = self.decode(n, x, y, stride, anchors[number])
                if scores.max() >= LEAST:
                    yield [scores.max(), scores.argmax(), *box, *np.ravel(points)]


def each(strides, count=1):
    return dict.fromkeys(strides, [None] * count)


def pairs(strides, *numbers):
    found = np.reshape(numbers, (len(strides), 3, 2)).tolist()
    return dict(zip(strides, found, strict=True))


V5 = pairs(THREE, 10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326)
V7 = pairs(THREE, 12, 16, 19, 36, 40, 28, 36, 75, 76, 55, 72, 146, 142, 110, 192, 243, 459, 401)
FASTEST = pairs((16, 32), 12.64, 19.39, 37.88, 51.48, 55.71, 138.31,
                126.91, 78.23, 131.57, 214.55, 279.92, 258.87)  # fmt: skip
RAW = {"outputs": partial(of_anchors, axis=0), "logits": True}
DISTANCES = {"columns": 32 + CLASSES, "scores": slice(32, None)}
APART = DISTANCES | {"outputs": lambda levels: by_kind(levels, slice(32, None), slice(32))}
FACES = {"columns": 15, "scores": slice(4, 5)}
SSD = {"decode": prior, "outputs": ssd, **FACES}
PLATES = SSD | {"columns": 13}
USUAL = {8: (16, 32), 16: (64, 128), 32: (256, 512)}
SLIM = {8: (10, 16, 24), 16: (32, 48), 32: (64, 96), 64: (128, 192, 256)}
BLAZE = {
    "decode": blazeface, "outputs": mediapipe, "columns": 17, "scores": slice(4, 5), "logits": True,
    "box": lambda random, shape: random.uniform(5, 40, shape),
}  # fmt: skip
LINEAGES = {
    "yolox": Lineage(yolox, each(THREE), one),
    "yolox of four levels": Lineage(yolox, each(FOUR), one),
    "yolox of two levels": Lineage(yolox, each((16, 32)), one, size=(416, 416)),
    "yolov5-raw": Lineage(yolo_raw, V5, **RAW),
    "yolov7-raw": Lineage(yolo_raw, V7, **RAW),
    "yolov4": Lineage(yolov4, V7, partial(of_anchors, axis=2)),
    "yolo-fastestv2": Lineage(
        yolo_fastest_v2, FASTEST, by_columns, shared=slice(5, None),
        box=lambda random, shape: random.uniform(0, 1, shape),
    ),
    "fastestdet": Lineage(fastestdet, each((16,)), as_map),
    "nanodet": Lineage(partial(distribution, centre=0.5, shift=-0.5), each(THREE), **APART),
    "nanodet-joined": Lineage(
        partial(distribution, centre=0.5), each(THREE), scores_first, **DISTANCES
    ),
    "nanodet-plus": Lineage(partial(distribution, centre=0), each(FOUR), scores_first, **DISTANCES),
    "picodet-raw": Lineage(partial(distribution, centre=0.5), each(FOUR), **APART),
    "yunet": Lineage(yunet, each(THREE), by_name, columns=16, scores=slice(4, 6)),
    "scrfd": Lineage(
        scrfd, each(THREE, 2), **FACES, box=lambda random, shape: random.uniform(0.5, 3, shape),
        outputs=lambda levels: by_kind(levels, [4], slice(4), slice(5, None)),
    ),
    "retinaface": Lineage(boxes=USUAL, **SSD),
    "retinaface-1mb": Lineage(boxes={8: (10, 20), 16: (32, 64), 32: (128, 256)}, **SSD),
    "retinaface-slim": Lineage(boxes=SLIM, size=(240, 320), **SSD),
    "retinaface-plate": Lineage(boxes=USUAL, **PLATES),
    "retinaface-plate-large": Lineage(boxes={8: (24, 48), 16: (96, 192), 32: (384, 768)}, **PLATES),
    "yunet-2021": Lineage(
        prior_2021, SLIM, ssd_2021, columns=16, scores=slice(4, None, 11), size=(120, 160),
        floors=True,
    ),
    "blazeface": Lineage(boxes=each((8, 16), 2) | each((16,), 6), size=(128, 128), **BLAZE),
    "blazeface of the back camera": Lineage(
        boxes=each((16,), 2) | each((32,), 6), size=(256, 256), **BLAZE
    ),
    "blazeface of the full range": Lineage(boxes=each((4,)), size=(192, 192), **BLAZE),
    "centerface": Lineage(
        centerface, each((4,)), maps, **FACES,
        box=lambda random, shape: random.uniform(-0.5, 0.5, shape),
    ),
    "yolov5-face": Lineage(
        in_pixels, each(THREE, 3), columns=16, scores=slice(4, 6),
        outputs=lambda levels: {"output": flat(levels)[..., [*range(5), *range(6, 16), 5]]},
        box=lambda random, shape: random.uniform(20, 100, shape),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAGES)
def test_boxes_are_those_of_the_loop(name):
    lineage, family = LINEAGES[name], name.partition(" ")[0]
    levels = list(lineage.levels())
    outputs = lineage.outputs(levels)
    want = np.array(sorted(lineage.expected(levels), reverse=True))
    assert len(want) > 5
    specs = [TensorSpec(n, "float32", (-1, *array.shape[1:])) for n, array in outputs.items()]
    if family == "yunet-2021":
        specs = [TensorSpec(n, "float32", array.shape) for n, array in outputs.items()]
    image = [TensorSpec("image", "float32", (1, 3, *lineage.size))]
    found = recognise(image, specs, {}, family)
    head = open_head(found, image)
    options = PredictOptions(conf=LEAST, iou=1.0, max_det=3000)
    objects = head.decode(outputs, 0, options)
    have = np.column_stack([objects.scores, objects.class_ids, objects.boxes])
    assert have == pytest.approx(want[:, :6], abs=1e-2)
    if found.skeleton is not None:
        points = objects.keypoints[..., :2].reshape(len(want), -1)
        assert points == pytest.approx(want[:, 6:], abs=1e-2)
    nothing = head.decode(outputs, 0, PredictOptions(conf=1))
    assert len(nothing) == 0
    assert found.skeleton is None or nothing.keypoints.shape[1:] == (len(found.skeleton.names), 3)
    columns = head.columns(outputs)
    assert columns is None or np.isfinite(columns).all()


@pytest.mark.parametrize("family", ["yolov8", "yolov5", "yolox"])
def test_tiny_ones_have_two_strides(family):
    """Boxes that are planted at a cell of each stride, in the columns of YOLOv3-tiny's exports."""
    side, classes, anchors = 640, 80, 3 if family == "yolov5" else 1
    planted = []
    tables = []
    for stride, (column, row) in ((16, (11, 20)), (32, (14, 3))):
        count = side // stride
        places = np.stack(np.meshgrid(np.arange(count), np.arange(count)), axis=-1).reshape(-1, 2)
        table = np.zeros((anchors, count * count, 5 + classes), np.float32)
        table[..., :4] = [0.5, 0.5, 0, 0]
        if family != "yolox":
            table[..., :2] = (places + 0.5) * stride
            table[..., 2:4] = stride
        if family != "yolov8":
            # Of a cell without an object, one class is likely all the same.
            table[..., 5] = 0.6
        cell = table[-1, row * count + column]
        cell[4], cell[5 + stride] = 1, 0.75
        middle = (np.array([column, row]) + 0.5) * stride
        planted.append([*(middle - stride / 2), *(middle + stride / 2)])
        tables.append(table.reshape(-1, 5 + classes))
    columns = np.concatenate(tables)[None]
    if family == "yolov8":
        columns = np.delete(columns, 4, axis=2).transpose(0, 2, 1)
    labels = {"names": str({number: f"class {number}" for number in range(classes)})}
    found = told({"output0": columns}, labels, size=(side, side))
    assert found.family == family
    assert "at strides 16, 32 of 640x640" in found.reason
    objects = opened(found, (side, side)).decode({"output0": columns}, 0, PredictOptions())
    assert objects.boxes.tolist() == planted
    assert objects.class_ids.tolist() == [16, 32]
    assert objects.scores.tolist() == [0.75, 0.75]


def levels_of(name, **changed):
    """Outputs of a lineage for COCO's classes, recognised by their numbers."""
    lineage = replace(LINEAGES[name], columns=85, **changed)
    levels = list(lineage.levels())
    return lineage, levels


def test_levels_of_yolov4_are_told_from_decoded_boxes_and_logits():
    lineage, levels = levels_of("yolov4")
    assert told(lineage.outputs(levels), size=lineage.size).family == "yolov4"
    for columns, change in ((slice(4), 0.5), (slice(4, None), -3.0)):
        for level in (other := [level.copy() for level in levels]):
            level[..., columns] = change
        assert told(lineage.outputs(other), size=lineage.size).family is None


def softmax_levels(name, classes=80):
    lineage = replace(LINEAGES[name], columns=5 + classes)
    levels = list(lineage.levels())
    for level in levels:
        level[..., 5:] /= level[..., 5:].sum(axis=-1, keepdims=True)
    as_map_of = partial(as_map, classes=classes)
    return (as_map_of if name == "fastestdet" else lineage.outputs)(levels), lineage.size


@pytest.mark.parametrize("name", ["yolo-fastestv2", "fastestdet"])
def test_classes_of_a_cell_are_a_softmax(name):
    outputs, size = softmax_levels(name)
    found = told(outputs, family=name, size=size)
    assert (found.family, found.num_classes) == (name, 80)
    head = opened(found, size)
    halved = {n: np.where(array > 0, array / 2, array) for n, array in outputs.items()}
    assert "after a softmax the sum is 1" in head.contradiction(halved)
    assert "not a probability" in head.contradiction({n: a * 30 for n, a in outputs.items()})


def test_anchors_of_ones_own_are_asked_for():
    outputs, size = softmax_levels("yolo-fastestv2", 5)
    found = told(outputs, size=size)
    assert found.family is None
    assert "yolo-fastestv2 (its anchors may differ" in found.reason
    assert told(outputs, family="yolo-fastestv2", size=size).family == "yolo-fastestv2"


@pytest.fixture
def centres():
    """Two classes: a peak in a corner, one beside it, and one that is worse than its neighbour."""
    heat = np.full((1, 2, 16, 24), 0.01, np.float32)
    heat[0, 0, 0, 0], heat[0, 1, 0, 1] = 0.9, 0.8
    heat[0, 1, 10, 20], heat[0, 1, 11, 21] = 0.7, 0.6
    sizes, offsets = np.zeros((1, 2, 16, 24), np.float32), np.full((1, 2, 16, 24), 0.5, np.float32)
    sizes[0, :, 0, 0], sizes[0, :, 0, 1], sizes[0, :, 10, 20] = (1, 2), (3, 1), (4, 6)
    offsets[0, :, 10, 20] = 0.25, 0.75
    return {"hm": heat, "wh": sizes, "reg": offsets}


@pytest.mark.parametrize("family", ["centernet", "centernet-logits"])
def test_centernet_finds_peaks(centres, family):
    logits = centres | {"hm": np.log(centres["hm"] / (1 - centres["hm"]))}
    mine, others = (centres, logits) if family == "centernet" else (logits, centres)
    swapped = {name: mine[name] for name in ("hm", "reg", "wh")}
    for outputs in (mine, swapped):
        found = told(outputs, family=family, size=(64, 96))
        assert (found.num_classes, found.outputs) == (2, ("hm", "wh", "reg"))
        head = opened(found, (64, 96))
        # Peaks are suppressed by their neighbours alone, and boxes of no size are none.
        for options in (PredictOptions(iou=0), PredictOptions(conf=0)):
            objects = head.decode(outputs, 0, options)
            assert objects.boxes.tolist() == [[0, -2, 4, 6], [0, 0, 12, 4], [73, 31, 89, 55]]
            assert objects.class_ids.tolist() == [0, 1, 1]
            assert objects.scores == pytest.approx([0.9, 0.8, 0.7], abs=1e-6)
    says = "not a probability" if family == "centernet" else "not logits"
    assert says in head.contradiction(others)
    far = dict(zip("abc", (mine["hm"], mine["reg"], mine["wh"] + 9), strict=True))
    assert "not offsets in cells" in opened(
        replace(found, outputs=tuple("abc")), (64, 96)
    ).contradiction(far)


def faces(priors, loc, face, points=10):
    tables = {"loc": loc, "conf": np.stack([1 - face, face], axis=1)}
    tables["landm"] = np.zeros((len(face), points))
    return {name: np.float32(table)[None] for name, table in tables.items()}


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_cells_that_all_say_the_same_tell_nothing_of_priors(noise):
    """So does a network that sees values out of its range, whose boxes go with the cells."""
    count = sum(2 * (320 // stride) ** 2 for stride in THREE)
    loc = np.random.default_rng(0).normal((0.3, -0.2, 0.5, 0.1), noise, (count, 4))
    outputs = faces(USUAL, loc, np.full(count, 0.6), points=8)
    named = told(outputs, family="retinaface-plate", size=(320, 320))
    assert (named.family, named.unseen, named.labels) == ("retinaface-plate", True, ("plate",))
    found = told(outputs, size=(320, 320))
    assert (found.open, found.unseen) == (("retinaface-plate", "retinaface-plate-large"), True)


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
    outputs = faces(SLIM, loc, face)
    if k == 1:
        assert told(outputs, size=(320, 320)).family == "retinaface-slim"
    else:
        with pytest.raises(UnsupportedModel, match="2 times"):
            told(outputs, family="retinaface-slim", size=(320, 320))


@pytest.mark.parametrize("family", ["scrfd", "yunet"])
def test_faces_that_move_with_the_cells_are_of_other_units(family):
    lineage = LINEAGES[family]
    found = told(lineage.outputs(list(lineage.levels())), size=lineage.size)
    assert found.family is None
    assert "predict different places for the same object" in excluded(found, family)


def test_scrfd_without_a_batch_and_without_points():
    lineage = LINEAGES["scrfd"]
    outputs, size = lineage.outputs(list(lineage.levels())), lineage.size
    image = [TensorSpec("image", "float32", (1, 3, *size))]

    def recognised(arrays):
        return recognise(image, [TensorSpec(n, "float32", a.shape) for n, a in arrays.items()], {})

    def decoded(arrays):
        return opened(recognised(arrays), size).decode(arrays, 0, PredictOptions())

    want = decoded(outputs)
    alone = {name: array[0] for name, array in outputs.items()}
    found = recognised(alone)
    assert (found.family, found.outputs) == ("scrfd", tuple("012345678"))
    assert decoded(alone).boxes.tolist() == want.boxes.tolist()
    bare = dict(list(alone.items())[:6])
    assert (recognised(bare).family, recognised(bare).skeleton) == ("scrfd", None)
    assert decoded(bare).keypoints is None
    # Levels in another order are refused, as nothing tells which is which.
    assert recognised(dict(reversed(alone.items()))).family is None
