"""Heads against the answers of their own families, which ../shared/models/heads stores.

file = File(shared, "rfdetr")
file.assert_expected(file.recognise())
"""

import json
import math
from functools import cached_property

import numpy as np
import onnx
import onnxruntime
import pytest
from faster_coco_eval.core import mask as coco
from tests.engines import reference
from tests.engines.zoo.cases import case_of
from tests.run_lengths import decoded

from fovea_engines.evaluation.observe import Observer
from fovea_engines.evaluation.samples import read_image
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.recognise import open_head, recognise
from fovea_engines.onnx_graph.normalise import normalise
from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs, metadata_of
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import axes, iou, regular
from fovea_preprocess.preprocessor import Preprocessor

NEAR, THRESHOLD = 1e-3, 0.25
USUAL = PredictOptions()


class File:
    """One file at a fixed size, run by plain ONNX Runtime; other inputs are made constants.

    Attributes:
        case: how its rows were made.
        images: pixels, uint8 RGB, and the rows that its family finds there.
    """

    def __init__(self, shared, name, path=None):
        stored = shared / "models" / "heads" / f"{name}.expected.json"
        path = path or stored.with_name(f"{name}.onnx")
        if not path.exists() and not (path := shared / "models" / path.name).exists():
            pytest.skip(f"{name}.onnx is not among the collected models")
        self.graph, self.case = onnx.load(path), case_of(name)
        _fill_in(self.graph)
        if -1 in graph_inputs(self.graph)[0].shape:
            self.graph = normalise(self.graph, self.case.given.get("size"), lambda note: None)
        self.inputs, self.outputs = graph_inputs(self.graph), graph_outputs(self.graph)
        self.metadata = metadata_of(self.graph)
        stored = json.loads(stored.read_text())["images"]
        data = shared / "data"
        self.images = {
            image: (read_image(data / ("" if image == "bus.jpg" else "coco64/val") / image), rows)
            for image, rows in stored.items()
        }

    @cached_property
    def session(self):
        return onnxruntime.InferenceSession(
            self.graph.SerializeToString(), providers=["CPUExecutionProvider"]
        )

    @cached_property
    def seen(self):
        return Observer(self.graph)

    def recognise(self, family=None, metadata=True):
        """Recognise the file by its numbers, too, with or without its metadata."""
        kept = self.metadata if metadata else {}
        return recognise(self.inputs, self.outputs, kept, family, observe=self.seen)

    def spec(self, family):
        trained = self.case.given.get("preprocess")
        return default_preprocess(family, self.inputs, self.metadata, trained=trained or None)

    def run(self, pixels, spec):
        """Outputs for an image, [1, ...], and where it lies in the input."""
        row = np.empty((1, *spec.row_shape), spec.dtype)
        where = Preprocessor(spec)(pixels, row[0])
        names = [output.name for output in self.outputs]
        answer = self.session.run(names, {self.inputs[0].name: row})
        return dict(zip(names, answer, strict=True)), where

    def decoded(self, told, options=USUAL):
        """For each image its shape, what is stored, and what is found there and in the input."""
        head, spec = open_head(told, self.inputs), self.spec(told.family)
        for pixels, stored in self.images.values():
            outputs, where = self.run(pixels, spec)
            inside = head.decode(outputs, 0, options)
            yield pixels.shape[:2], stored, inside.to_source(where), inside

    def assert_expected(self, told):
        """Find the stored rows on every image: the same classes, boxes and scores, and no more.

        Their masks overlap by .98, and their keypoints, clipped to the image, are within a pixel.
        Rows within `case.score` of the threshold may fall either way.
        """
        options = PredictOptions(conf=THRESHOLD - self.case.score, **self.case.options)
        for shape, rows, found, inside in self.decoded(told, options):
            if found.rotated is not None:
                columns = zip(found.rotated, found.scores, found.class_ids, strict=True)
                left = unmatched_rotated(columns, rows, shape)
                assert not [row for row in left if row[1] >= THRESHOLD + self.case.score], left
            else:
                assert_objects(found, rows, shape, self.case)
                assert_masks(rows, found, inside)


def assert_objects(found, rows, shape, case):
    """Find the rows of an image of this shape, their keypoints, and no more over the threshold."""
    # Networks that nobody trained give boxes of no height, which their programs keep.
    rows = [row for row in rows if (np.array(row["box"][:2]) < row["box"][2:]).all()]
    columns = found.boxes, found.scores, found.class_ids
    if case.several:
        left = unmatched_best(columns, rows, shape)
    else:
        left = unmatched(columns, rows, shape, score=case.score)
    assert_keypoints(rows, found, shape)
    more = [row for row in left if row[1] >= THRESHOLD + case.score]
    assert not more, f"more was found: {more}"


def unmatched(found, rows, shape, iou=0.99, score=NEAR):
    """Find each stored row, clipped to an image of this shape, and return what else was found.

    `found` is boxes, scores and class ids. It is an AssertionError where a row is not found.
    """
    height, width = shape[:2]
    left = list(zip(*(np.asarray(column).tolist() for column in found), strict=True))
    for want in rows:
        box = np.clip(want["box"], 0, [width, height, width, height])
        alike = [row for row in left if row[2] == want["class_id"]]
        near = [
            row for row in alike if abs(row[1] - want["score"]) <= score and _same(row[0], box, iou)
        ]
        assert near, f"{want} is not found; of its class there are {alike}"
        left.remove(min(near, key=lambda row: np.abs(np.subtract(row[0], box)).max()))
    return left


def unmatched_best(found, rows, shape, limit=0.45):
    """Do as `unmatched` for LibreYOLO's programs, which find more and less than a head.

    They give a box every class over the threshold, and a head its best; and they clip boxes before
    they suppress, so that a box at the edge may go that a head keeps.
    """
    best = [
        row
        for row in rows
        if not any(
            np.allclose(one["box"], row["box"], atol=0.01) and one["score"] > row["score"]
            for one in rows
        )
    ]
    return [
        one
        for one in unmatched(found, best, shape)
        if not any(
            row["class_id"] == one[2]
            and row["score"] > one[1] - NEAR
            and reference.overlap(one[0], row["box"]) > limit
            for row in rows
        )
    ]


def unmatched_rotated(found, rows, shape, score=NEAR):
    """Do as `unmatched` for rectangles cx cy w h and an angle, and leave out what is broken.

    Networks that nobody trained give rectangles of negative height, and some outside the image.
    """
    left = list(found)
    for want in rows:
        x1, y1, x2, y2 = want["box"]
        if not (x1 < shape[1] and y1 < shape[0] and x2 > 0 and y2 > 0 < min(want["xywhr"][2:4])):
            continue
        near = [
            i
            for i, row in enumerate(left)
            if row[2] == want["class_id"]
            and abs(row[1] - want["score"]) <= score
            and _same_rectangle(row[0], want["xywhr"])
        ]
        assert near, f"{want} is not found"
        del left[near[0]]
    return left


def _same_rectangle(row, want):
    """Return True if rectangles overlap by .99 and their angles agree to half a degree."""
    row, want = np.array([row], np.float32), regular(np.array([want], np.float32))
    turn = abs(float(row[0, 4] - want[0, 4]))
    turns = [turn, math.pi - turn]
    if want[0, 3] > 0.995 * want[0, 2]:  # almost a square, whose sides may change places
        turns.append(abs(turn - math.pi / 2))
    return min(turns) <= math.radians(0.5) and iou(axes(row), axes(want))[0] >= 0.99


def assert_masks(rows, found, inside, iou=0.98):
    """Compare the masks of stored rows, which are in pixels of the image or of the input."""
    for row in (row for row in rows if "mask_rle" in row):
        want = decoded(row["mask_rle"])
        masks = next(each.masks for each in (found, inside) if each.masks.size == want.shape)
        have = masks.bitmap(_partner(row, found))
        common, either = (want & have).sum(), (want | have).sum()
        assert common >= iou * either, f"of {row['score']} it overlaps by {common / either}"


def assert_keypoints(rows, found, shape, px=1.0, score=0.01):
    """Compare the keypoints of stored rows, which some programs clip to the image."""
    edge = np.array(shape[1::-1])
    for row in (row for row in rows if "keypoints" in row):
        want, have = np.array(row["keypoints"]), found.keypoints[_partner(row, found)]
        off = np.abs(want[:, :2].clip(0, edge) - have[:, :2].clip(0, edge)).max()
        assert off <= px, f"of {row['score']} a keypoint is {off} px off"
        assert want[:, 2:] == pytest.approx(have[:, 2 : want.shape[1]], abs=score)


def _partner(row, found):
    """The index of the object that is closest to a stored row."""
    off = np.abs(found.boxes - row["box"]).max(axis=1) + 1e3 * np.abs(found.scores - row["score"])
    return int(np.where(found.class_ids == row["class_id"], off, np.inf).argmin())


def _same(box, want, iou):
    """Return True if boxes overlap by `iou`, or if their corners agree to .05 pixels."""
    sides = np.minimum(box[2:], want[2:]) - np.maximum(box[:2], want[:2])
    common = np.prod(np.maximum(sides, 0))
    areas = sum(np.prod(np.subtract(each[2:], each[:2])) for each in (box, want))
    return common >= iou * (areas - common) or np.abs(np.subtract(box, want)).max() < 0.05


def _fill_in(graph):
    """Replace inputs beside the image by constants of the input's size, as a build does."""
    images, *others = graph_inputs(graph)
    height, width = images.shape[2:]
    known = {"orig_target_sizes": [[width, height]], "im_shape": [[height, width]]}
    for tensor in others:
        value = np.array(known.get(tensor.name, [[1, 1]]), tensor.dtype)
        graph.graph.initializer.append(onnx.numpy_helper.from_array(value, tensor.name))
    for value in [v for v in graph.graph.input if v.name in {t.name for t in others}]:
        graph.graph.input.remove(value)


def class_map(stored):
    """The classes of an image, uint8 [height, width], of the run lengths of each."""
    found = np.full(stored["size"], 255, np.uint8)
    for class_id, lengths in stored["rle"].items():
        mask = coco.decode({"size": lengths["size"], "counts": lengths["counts"].encode()})
        found[mask.astype(bool)] = int(class_id)
    return found


def sampled(values):
    """A map at 16 x 16 places, as the stored answers have it."""
    rows, columns = (np.linspace(0, side - 1, 16).round().astype(int) for side in values.shape)
    return values[np.ix_(rows, columns)]
