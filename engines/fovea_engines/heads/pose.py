"""Decodes persons and other objects with their keypoints.

    yolov8-pose         YOLOv8, 11: [n, 4 + classes + keypoints x 2 or 3, cells]
    yolov10-pose        YOLO26, exports of Ultralytics with nms=True: [n, k, 6 + keypoints x 2 or 3]
    movenet             MoveNet: [n, 1, 17, 3] y x score of one person, as fractions of the input
    movenet-multipose   MoveNet of six persons: [n, 6, 56], the same, y1 x1 y2 x2 and a score

Keypoints of YOLO are in pixels of the input.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector, Head, keypoints
from fovea_engines.heads.end_to_end import YoloV10
from fovea_engines.heads.evidence import fractions, no_probability, pixels
from fovea_engines.heads.metadata import skeleton_from_metadata
from fovea_engines.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.heads.suppressed import Rows
from fovea_engines.heads.yolo_dense import YoloV8
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import choose, take
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.skeleton import PERSON, Skeleton
from fovea_engines.session import Array

_POINTS = len(PERSON.names)
# Smallest score of a keypoint that is used for the box of its person. TensorFlow's example uses the
# same limit.
_SURE = 0.1


class YoloV8Pose(YoloV8):
    """Decodes the columns of YOLOv8, and then columns x y, usually with a score, per keypoint."""

    family = "yolov8-pose"
    task = "pose"
    extras = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the output of a YOLOv8 detector with more columns."""
        if isinstance(output := signature.single(), str):
            return output
        if isinstance(layout := _keypoints(signature, output.shape[1] - 5), str):
            return layout
        skeleton, numbers = layout
        fit = signature.fit_grid(axis=1, per_cell=1, others=4 + len(skeleton.names) * numbers)
        return fit if isinstance(fit, str) else _add_keypoints(fit, skeleton, signature)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if keypoints are not in pixels or scores are not probabilities.
        """
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        columns = outputs[self.outputs[0]][0][self._end :].T
        return _no_keypoints(_reshape(columns, self.skeleton))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        found, columns = self.objects(outputs[self.outputs[0]][row], options)
        return replace(found, keypoints=_points(columns, self.skeleton))


class YoloV10Pose(YoloV10):
    """Decodes pose models with suppression in the graph: YOLOv26, and exports that include NMS."""

    family = "yolov10-pose"
    task = "pose"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for rows [batch, k, 6 + keypoints]."""
        if isinstance(output := signature.single(), str):
            return output
        if isinstance(layout := _keypoints(signature, output.shape[2] - 6), str):
            return layout
        skeleton, numbers = layout
        fit = cls.fit_rows(signature, output, len(skeleton.names) * numbers)
        return fit if isinstance(fit, str) else _add_keypoints(fit, skeleton, signature)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if `YoloV10` finds a reason, or if the keypoints of objects are not
        pixels and probabilities.
        """
        if (reason := super().contradiction(outputs)) is not None:
            return reason
        table = outputs[self.outputs[0]][0]
        return _no_keypoints(_reshape(table[table[:, 4] > 0, 6:], self.skeleton))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the detections of one image in the batch."""
        table = outputs[self.outputs[0]][row]
        found, numbers = self.objects(self.split(table), options)
        columns = table[numbers, 6:].astype(np.float32, copy=False)
        return replace(found, keypoints=_points(columns, self.skeleton))


class _MoveNet(Detector):
    """Decodes y x and a score for each keypoint. y and x are fractions of the input.

    Attributes:
        shape: shape of the output without the batch.
    """

    task = "pose"
    labels = ("person",)
    preprocess: ClassVar[Mapping[str, Any]] = {"pad": 0, "scale": 1.0}
    sized = True
    shape: ClassVar[tuple[int, ...]]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check the shape of the output. All models of the family have the same shape."""
        if [one.shape[1:] for one in signature.outputs] != [cls.shape]:
            return OTHERS
        why = f"{_POINTS} keypoints for each person"
        return Fit((signature.outputs[0].name,), 1, why, skeleton=PERSON)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Return why the outputs cannot come from this head family, or None if they can.

        They cannot if scores are not probabilities or positions are in pixels.
        """
        # Check all rows, and not only the rows with high scores: an image without persons has no
        # such row.
        table = outputs[self.outputs[0]][0].astype(np.float32)
        table = table.reshape(len(table), -1)
        points = table[:, : 3 * _POINTS].reshape(-1, 3)
        scores = np.append(points[:, 2], table[:, 3 * _POINTS + 4 :])
        return no_probability(scores, "a score") or pixels(points[:, :2], "keypoints")

    @abstractmethod
    def people(self, outputs: Mapping[str, Array], row: int) -> tuple[Array, Rows]:
        """Return the keypoints of n people, [n, 17, 3], and the rows of their boxes.

        A keypoint is x and y as fractions of the input, and a score.
        """

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return the persons in one image."""
        assert self.size is not None, "it is sized"
        points, people = self.people(outputs, row)
        side = np.array(self.size[::-1], np.float32)
        boxes = people.boxes * np.tile(side, 2)
        kept = choose(boxes, people.scores, people.class_ids, options, suppress=False)
        found = take(boxes, people.scores, people.class_ids, kept)
        return replace(found, keypoints=keypoints(points[kept] * np.append(side, np.float32(1))))


class MoveNet(_MoveNet):
    """Decodes the keypoints [batch, 1, 17, 3] of one person.

    The box is the smallest box around the keypoints with high scores. The score of the person is
    the mean score of these keypoints.
    """

    family = "movenet"
    shape = (1, _POINTS, 3)

    def people(self, outputs: Mapping[str, Array], row: int) -> tuple[Array, Rows]:
        """Return the person, or no row if no keypoint has a high score."""
        points = _x_first(outputs[self.outputs[0]][row].astype(np.float32))
        sure = points[points[..., 2] >= _SURE]
        if not len(sure):
            return _rows(points[:0], np.zeros((0, 4), np.float32), np.zeros(0, np.float32))
        box = np.concatenate([sure[:, :2].min(axis=0), sure[:, :2].max(axis=0)])
        return _rows(points, box[None], sure[:, 2].mean(keepdims=True))


class MoveNetMultiPose(_MoveNet):
    """Decodes rows [batch, 6, 56]: keypoints, a box y1 x1 y2 x2 and a score for each person."""

    family = "movenet-multipose"
    shape = (6, 3 * _POINTS + 5)

    def people(self, outputs: Mapping[str, Array], row: int) -> tuple[Array, Rows]:
        """Return all six rows."""
        table = outputs[self.outputs[0]][row].astype(np.float32)
        points, rest = table[:, :-5].reshape(-1, _POINTS, 3), table[:, -5:]
        return _rows(_x_first(points), rest[:, [1, 0, 3, 2]], rest[:, 4])


def _keypoints(signature: Signature, columns: int) -> tuple[Skeleton, int] | str:
    """Return the names of the keypoints, and the number of columns per keypoint.

    Without metadata, only the 17 keypoints of a person, with scores, and one class are possible. If
    the number of columns does not fit, return the reason.
    """
    if (declared := skeleton_from_metadata(signature.metadata)) is not None:
        return declared
    if columns != 3 * len(PERSON.names):
        return (
            f"{columns} further columns do not fit the 17 keypoints of a person (x, y and score "
            "each)"
        )
    return PERSON, 3


def _add_keypoints(fit: Fit, skeleton: Skeleton, signature: Signature) -> Fit:
    why = f"{fit.why}; {len(skeleton.names)} keypoints for each object"
    # A detector with more classes has an output of the same shape.
    named = signature.task is not None
    strength = fit.strength if named else Strength.RARE
    return replace(fit, why=why, strength=strength, skeleton=skeleton)


def _no_keypoints(points: NDArray[np.float32]) -> str | None:
    """Return a reason if keypoints [n, k, 2 or 3] are not positions in pixels and probabilities."""
    return fractions(points[..., :2], "keypoints") or no_probability(
        points[..., 2:], "a keypoint's score"
    )


def _points(columns: NDArray[np.float32], skeleton: Skeleton | None) -> NDArray[np.float32]:
    """Return keypoints [n, k, 3] from columns [n, k x 2 or 3]. A missing score is 1."""
    return keypoints(_reshape(columns, skeleton))


def _reshape(columns: NDArray[np.float32], skeleton: Skeleton | None) -> NDArray[np.float32]:
    """Return columns [n, k x 2 or 3] as [n, k, 2 or 3]."""
    assert skeleton is not None, "the fit has it"
    count = len(skeleton.names)
    return columns.reshape(len(columns), count, columns.shape[1] // count)


def _x_first(points: NDArray[np.float32]) -> NDArray[np.float32]:
    return points[..., [1, 0, 2]]


def _rows(
    points: NDArray[np.float32], boxes: NDArray[np.float32], scores: NDArray[np.float32]
) -> tuple[Array, Rows]:
    return points, Rows(boxes, scores, np.zeros(len(scores), np.int32))


HEADS: tuple[type[Head], ...] = (YoloV8Pose, YoloV10Pose, MoveNet, MoveNetMultiPose)
