"""Decodes MoveNet: one person, or up to six, with the keypoints of COCO."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.base import Detector
from fovea_engines.detect.heads.evidence import no_probability, pixels
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature
from fovea_engines.detect.nms import choose, take
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.skeleton import PERSON
from fovea_engines.session import Array
from fovea_heads.keypoints import keypoints
from fovea_heads.suppressed import Rows

_POINTS = len(PERSON.names)
# Of TensorFlow's example: keypoints that score less are no part of the person.
_SURE = 0.1


class _MoveNet(Detector):
    """Decodes y x and a score of each keypoint, as fractions of the input.

    Attributes:
        shape: of the output, without the batch.
    """

    task = "pose"
    labels = ("person",)
    preprocess: ClassVar[Mapping[str, Any]] = {"pad": 0, "scale": 1.0}
    sized = True
    shape: ClassVar[tuple[int, ...]]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for the one shape there is."""
        if [one.shape[1:] for one in signature.outputs] != [cls.shape]:
            return OTHERS
        why = f"{_POINTS} keypoints of each person"
        return Fit((signature.outputs[0].name,), 1, why, skeleton=PERSON)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude scores that are no probabilities, and places in pixels."""
        # All numbers, as what is unsure is no person.
        table = outputs[self.outputs[0]][0].astype(np.float32)
        table = table.reshape(len(table), -1)
        points = table[:, : 3 * _POINTS].reshape(-1, 3)
        scores = np.append(points[:, 2], table[:, 3 * _POINTS + 4 :])
        return no_probability(scores, "a score") or pixels(points[:, :2], "keypoints")

    @abstractmethod
    def people(self, outputs: Mapping[str, Array], row: int) -> tuple[Array, Rows]:
        """Return keypoints [n, 17, 3], x y and a score, and the boxes; x y are fractions."""

    @np.errstate(invalid="ignore", over="ignore")
    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's persons."""
        assert self.size is not None, "it is sized"
        points, people = self.people(outputs, row)
        side = np.array(self.size[::-1], np.float32)
        boxes = people.boxes * np.tile(side, 2)
        kept = choose(boxes, people.scores, people.class_ids, options, suppress=False)
        found = take(boxes, people.scores, people.class_ids, kept)
        return replace(found, keypoints=keypoints(points[kept] * np.append(side, np.float32(1))))


class MoveNet(_MoveNet):
    """Decodes the keypoints [batch, 1, 17, 3] of one person.

    The box is around those that are sure, and their mean score is the person's.
    """

    family = "movenet"
    shape = (1, _POINTS, 3)

    def people(self, outputs: Mapping[str, Array], row: int) -> tuple[Array, Rows]:
        """Return the person, or none where no keypoint is sure."""
        points = _x_first(outputs[self.outputs[0]][row].astype(np.float32))
        sure = points[points[..., 2] >= _SURE]
        if not len(sure):
            return _rows(points[:0], np.zeros((0, 4), np.float32), np.zeros(0, np.float32))
        box = np.concatenate([sure[:, :2].min(axis=0), sure[:, :2].max(axis=0)])
        return _rows(points, box[None], sure[:, 2].mean(keepdims=True))


class MoveNetMultiPose(_MoveNet):
    """Decodes rows [batch, 6, 56]: keypoints, a box y1 x1 y2 x2 and a score of each person."""

    family = "movenet-multipose"
    shape = (6, 3 * _POINTS + 5)

    def people(self, outputs: Mapping[str, Array], row: int) -> tuple[Array, Rows]:
        """Return all six."""
        table = outputs[self.outputs[0]][row].astype(np.float32)
        points, rest = table[:, :-5].reshape(-1, _POINTS, 3), table[:, -5:]
        return _rows(_x_first(points), rest[:, [1, 0, 3, 2]], rest[:, 4])


def _x_first(points: NDArray[np.float32]) -> NDArray[np.float32]:
    return points[..., [1, 0, 2]]


def _rows(
    points: NDArray[np.float32], boxes: NDArray[np.float32], scores: NDArray[np.float32]
) -> tuple[Array, Rows]:
    return points, Rows(boxes, scores, np.zeros(len(scores), np.int32))
