"""Outputs of exported models for an image of 640x640 with one object of class 7 at BOX, by name."""

import numpy as np

from fovea_engines.heads.grid import grid

SIZE = (640, 640)
BOX = np.array([96, 192, 288, 448], np.float32)
CENTRED = np.array([192, 320, 192, 256], np.float32)
CORNER = (192, 320)
"""Of the object's cell, at strides up to 64, which begins in the middle of the object."""

CLASS, CLASSES, SCORE = 7, 80, 0.9
THREE, FOUR = (8, 16, 32), (8, 16, 32, 64)
QUERIES = 300


def random(*shape, low=0.0, high=1.0):
    return np.random.default_rng(3).uniform(low, high, shape).astype(np.float32)


def at(strides=THREE, per=1):
    """The number of the object's box in a grid: at stride 32, and the first of its cell."""
    places, steps = grid(SIZE, strides, per)
    stride = min(strides[-1], 32)
    corner = (steps[:, 0] == stride) & (places * steps == CORNER).all(axis=1)
    return int(corner.argmax())


def centred(strides=THREE, per=1):
    """Boxes cx cy w h in pixels of every cell."""
    places, steps = grid(SIZE, strides, per)
    boxes = np.concatenate(
        [(places + 0.5) * steps, steps * random(len(steps), 2, low=2, high=6)], 1
    )
    boxes[at(strides, per)] = CENTRED
    return boxes


def corners(boxes):
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)


def scores(strides=THREE, per=1, classes=CLASSES):
    table = random(len(grid(SIZE, strides, per)[0]), classes, high=0.01)
    table[at(strides, per), min(CLASS, classes - 1)] = SCORE
    return table


def joined(*columns):
    """[1, boxes, n] of columns [boxes, ...]."""
    rows = [column.reshape(len(columns[0]), -1) for column in columns]
    return np.concatenate(rows, axis=1, dtype=np.float32)[None]


def with_objectness(boxes, objectness, classes=CLASSES, per=1):
    """[1, boxes, 5 + classes]; as in trained models, most boxes are .2 sure of some class."""
    table = random(len(boxes), classes, high=0.3)
    table[at(per=per), CLASS] = SCORE / objectness[at(per=per)]
    return joined(boxes, objectness, table)


def objectness(per=1):
    return scores(per=per, classes=1)[:, 0]


def offsets(strides=THREE, per=1):
    """Offsets in cells, and logarithms of sizes in strides."""
    _, steps = grid(SIZE, strides, per)
    table = random(len(steps), 4, low=-1)
    table[at(strides, per)] = [0, 0, *np.log(CENTRED[2:] / 32)]
    return table


def distances(strides=THREE, per=1, centre=0.0):
    """Distances in strides from a point of each cell, which is `centre` strides from its corner."""
    places, steps = grid(SIZE, strides, per)
    table = random(len(steps), 4, low=0.5, high=3)
    found = at(strides, per)
    point = (places[found] + centre) * steps[found]
    table[found] = np.concatenate([point - BOX[:2], BOX[2:] - point]) / steps[found]
    return table


def distributions(strides, centre):
    """Logits of eight distances for each side of every box, [boxes, 32]."""
    wanted = distances(strides, centre=centre)[..., None]
    share = np.clip(1 - np.abs(wanted - np.arange(8)), 1e-30, 1)
    return np.log(share).reshape(len(wanted), 32)


def levels(table, strides=THREE, per=1):
    """Split a grid's rows by level, [1, boxes, n] each."""
    ends = np.cumsum([per * (SIZE[0] // stride) * (SIZE[1] // stride) for stride in strides])[:-1]
    return [level[None] for level in np.split(table, ends)]


def by_anchor(table, strides=THREE, per=3):
    """Reorder a grid's rows [1, boxes, n] as YOLOv5's: of a level, first those of one anchor."""
    parts = [
        level.reshape(-1, per, level.shape[-1]).swapaxes(0, 1)
        for level in levels(table[0], strides, per)
    ]
    return np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])[None]


def logits(probabilities):
    return np.log(probabilities / (1 - probabilities))


def queries(classes=CLASSES, column=CLASS):
    """Probabilities [queries, classes], and boxes as fractions."""
    table = random(QUERIES, classes, low=1e-4, high=0.02)
    boxes = np.concatenate([random(QUERIES, 2, low=0.2, high=0.8), random(2, QUERIES).T * 0.3], 1)
    table[40, column], boxes[40] = SCORE, CENTRED / 640
    return table, boxes


def softmax_queries(classes=92):
    """Logits of a softmax [queries, classes], of which the last is "none", and boxes."""
    _, boxes = queries()
    table = random(QUERIES, classes, low=-4, high=0)
    table[:, -1] = 9
    table[40, CLASS], table[40, -1] = 10, 10 - np.log(9)
    return table, boxes


def ranked(count=QUERIES):
    """Corners in pixels, scores and class ids of rows, the best first; all but one are unsure."""
    boxes = corners(random(count, 4, low=100, high=300))
    rank = np.linspace(0.05, 0.001, count, dtype=np.float32)
    class_ids = np.arange(count) % CLASSES
    boxes[0], rank[0], class_ids[0] = BOX, SCORE, CLASS
    return boxes, rank, class_ids


def batched(names, *arrays):
    return {name: array[None] for name, array in zip(names, arrays, strict=True)}


def shares(rows, columns):
    """Probabilities of a softmax, [rows, columns]."""
    table = np.exp(random(rows, columns, low=-4, high=4))
    table[:, min(CLASS, columns - 1)] = 2 * table.sum(axis=1) if rows == 1 else 1
    return (table / table.sum(axis=1, keepdims=True)).astype(np.float32)


def soft_map(height, width):
    """A smooth map of 0..1, as of what stands out or is near."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    return np.exp(-20 * ((x - 0.4) ** 2 + (y - 0.5) ** 2)).astype(np.float32)


def one(table):
    """The only output of Ultralytics' exports, [1, ...]."""
    return {"output0": np.asarray(table, np.float32)}


def side(table):
    return one(table.transpose(0, 2, 1))


def protos():
    return {"output1": random(1, 32, 160, 160)}


def rfdetr(columns, column=CLASS):
    table, boxes = queries(columns, column)
    return batched(("dets", "labels"), boxes, logits(table))


def raw_detr(first="pred_logits", columns=80):
    table, boxes = queries(columns)
    return batched((first, "pred_boxes"), logits(table), boxes)


def detr(log_softmax=False):
    table, boxes = softmax_queries()
    if log_softmax:
        table = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    return batched(("logits", "pred_boxes"), table, boxes)


def ultralytics_rtdetr():
    return one(joined(*queries()[::-1]))


def boxes_and_scores(transposed=False, boxes_first=True):
    table = scores().T if transposed else scores()
    pair = {"boxes": corners(centred())[None], "scores": table[None]}
    return pair if boxes_first else dict(reversed(pair.items()))


def raw_levels():
    found, per = at(per=3), 3
    table = random(25200, 85, low=-9, high=-5)
    # Of cell 6, 10, with the smallest of the largest anchors, which is 116 x 90.
    table[found, :4] = logits(np.array([0.25, 0.25, (192 / 116) ** 0.5 / 2, (256 / 90) ** 0.5 / 2]))
    table[found, [4, 5 + CLASS]] = 9, logits(SCORE)
    shaped = []
    for level, n in zip(levels(table, per=per), (80, 40, 20), strict=True):
        shaped.append(level.reshape(1, n, n, 3, 85).transpose(0, 3, 1, 2, 4))
    return dict(zip(("p3", "p4", "p5"), shaped, strict=True))


def keypoints(count):
    places = random(count, 17, 2, low=100, high=300)
    return np.concatenate([places, random(count, 17, 1)], axis=2)


def centernet():
    heat = random(1, 80, 160, 160, high=0.01)
    sizes, places = random(1, 2, 160, 160, high=9), random(1, 2, 160, 160)
    heat[0, CLASS, 80, 48], sizes[0, :, 80, 48], places[0, :, 80, 48] = SCORE, (48, 64), 0
    return {"hm": heat, "wh": sizes, "reg": places}


def centerface():
    heat = random(1, 1, 160, 160, high=0.01)
    sizes, places = random(1, 2, 160, 160), random(1, 2, 160, 160, low=-0.5, high=0.5)
    heat[0, 0, 80, 48], places[0, :, 80, 48] = SCORE, -0.5
    sizes[0, :, 80, 48] = np.log([64, 48])
    return {"537": heat, "538": sizes, "539": places, "540": random(1, 10, 160, 160)}


def by_stride(kinds, tables, per=1):
    found = {}
    for kind, table in zip(kinds, tables, strict=True):
        found |= {
            f"{kind}_{s}": t for s, t in zip((8, 16, 32), levels(table, per=per), strict=True)
        }
    return found


def yunet():
    sure = scores(classes=1) ** 0.5
    return by_stride(("cls", "obj", "bbox", "kps"), (sure, sure, offsets(), random(8400, 10)))


def scrfd():
    tables = scores(per=2, classes=1), distances(per=2), random(16800, 10)
    return by_stride(("score", "bbox", "kps"), tables, per=2)


def retinaface(side=256, points=5):
    """A face that four neighbouring cells find, by their priors of a side in pixels."""
    face, steps = scores(per=2, classes=1), random(16800, 4, low=-1)
    places, strides = grid(SIZE, THREE, 2)
    for cell in at(per=2) + 2 * np.array([0, 1, 20, 21]):
        middle = (places[cell] + 0.5) * strides[cell]
        face[cell], steps[cell, 2:] = SCORE, np.log(CENTRED[2:] / side) / 0.2
        steps[cell, :2] = (CENTRED[:2] - middle) / (0.1 * side)
    tables = steps, np.concatenate([1 - face, face], axis=1), random(16800, 2 * points)
    return batched(("loc", "conf", "landm"), *tables)


def yolov5_face():
    face, points = objectness(per=3) ** 0.5, random(25200, 10, low=50, high=600)
    return one(by_anchor(joined(centred(per=3), face, points, face)))


def yolov5():
    return one(by_anchor(with_objectness(centred(per=3), objectness(3), per=3)))


def ultraface():
    face = random(4420, 1, high=0.01)
    boxes = corners(np.concatenate([random(4420, 2), random(2, 4420).T * 0.2], 1))
    face[9], boxes[9] = SCORE, BOX / [320, 240, 320, 240] / 2
    return batched(("scores", "boxes"), np.concatenate([1 - face, face], axis=1), boxes)


def nanodet_plus():
    return {"output": joined(scores(FOUR), distributions(FOUR, 0))}


def nanodet_joined():
    return {"output": joined(scores(), distributions(THREE, 0.5))}


def picodet():
    tables = levels(scores(FOUR), FOUR) + levels(distributions(FOUR, 0.5), FOUR)
    return {str(i): table for i, table in enumerate(tables)}


def turns(count):
    """Angles; the object's is 0."""
    angles = random(count, low=-0.7, high=2.3)
    angles[[0, at()] if count == 8400 else 0] = 0
    return angles


def rotated_rows():
    boxes, rank, ids = ranked()
    boxes = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
    return one(joined(boxes, rank, ids, turns(QUERIES)))


def depth(height=640, width=640):
    return 1 + 9 * soft_map(height, width)[None]


def class_map():
    return {"output0": random(1, 640, 640, high=19).astype(np.uint8)}


def rfdetr_masks():
    return rfdetr(91) | {"masks": random(1, QUERIES, 160, 160)}


def yolov6():
    return {"outputs": joined(centred(), np.ones(8400), scores())}


def yolox(boxes):
    return {"output": with_objectness(boxes(), objectness())}


def yolov8(change=lambda boxes: boxes):
    return side(joined(change(centred()), scores()))


def segmenter():
    return side(joined(centred(), scores(), random(8400, 32, low=-1))) | protos()


def segmenter_rows():
    return one(joined(*ranked(), random(QUERIES, 32, low=-1))) | protos()


def pose():
    return side(joined(centred(), scores(classes=1), keypoints(8400)))


def pose_rows(change=lambda points: points):
    return one(joined(*ranked(), change(keypoints(QUERIES))))


def rotated():
    return side(joined(centred(), scores(), turns(8400)))


def classes():
    return one(shares(1, 80))


def text_map():
    """A line of text as networks are trained on: shrunk by its area over its length, times 1.6."""
    found = random(1, 1, 640, 640, high=0.01)
    found[0, 0, 240:400, 144:240] = SCORE
    return {"sigmoid_0.tmp_0": found}


def movenet(people=1):
    """Keypoints in the corners of the box, as y x and a score."""
    points = np.tile(BOX[[1, 0]] / 640, (17, 1))
    points[::2] = BOX[[3, 2]] / 640
    points = np.concatenate([points, np.full((17, 1), SCORE)], axis=1, dtype=np.float32)
    if people == 1:
        return {"output_0": points[None, None]}
    table = random(people, 56, high=0.01)
    table[2] = np.concatenate([points.ravel(), BOX[[1, 0, 3, 2]] / 640, [SCORE]])
    return {"output_0": table[None]}


def blazeface():
    """Of 128 x 128 pixels, in the middle of a cell at stride 8."""
    numbers, logit = random(896, 16, low=5, high=40), random(896, 1, low=-90, high=-5)
    place = (CENTRED[:2] / 5 // 8).astype(int)
    at = 2 * (16 * place[1] + place[0])
    numbers[at, :2] = CENTRED[:2] / 5 - (place + 0.5) * 8
    numbers[at, 2:4], logit[at] = CENTRED[2:] / 5, np.log(SCORE / (1 - SCORE))
    return batched(("regressors", "classificators"), numbers, logit)


def mediapipe(boxes, columns):
    numbers = random(boxes, columns, high=128), random(boxes, 1, low=-90)
    return batched(("regressors", "classificators"), *numbers)
