"""Outputs for an image of 640x640 as every family has them: one object of class 7 at BOX."""

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
