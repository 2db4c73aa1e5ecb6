"""Decodes YOLO's pose models: objects with their keypoints in pixels of the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.detections import Detections
from fovea_engines.detect.heads.evidence import fractions, no_probability
from fovea_engines.detect.heads.metadata import skeleton_from_metadata
from fovea_engines.detect.heads.signature import Fit, Signature, Strength
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.skeleton import PERSON, Skeleton
from fovea_engines.session import Array
from fovea_heads.end_to_end import YoloV10
from fovea_heads.keypoints import keypoints
from fovea_heads.yolo_dense import YoloV8


class YoloV8Pose(YoloV8):
    """Decodes the columns of YOLOv8, then x y of each keypoint, mostly with its probability."""

    family = "yolov8-pose"
    task = "pose"
    extras = True

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for a detector's grid with more columns."""
        if isinstance(output := signature.single(), str):
            return output
        if isinstance(said := _keypoints(signature, output.shape[1] - 5), str):
            return said
        skeleton, numbers = said
        fit = signature.fit_grid(axis=1, per_cell=1, others=4 + len(skeleton.names) * numbers)
        return fit if isinstance(fit, str) else _with_keypoints(fit, skeleton, signature)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude keypoints that are no pixels, and scores that are no probabilities."""
        if (reason := YoloV8.contradiction(self, outputs)) is not None:
            return reason
        columns = outputs[self.outputs[0]][0][self._end :].T
        return _no_keypoints(_shaped(columns, self.skeleton))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        found, columns = self.objects(outputs[self.outputs[0]][row], options)
        return replace(found, keypoints=_points(columns, self.skeleton))


class YoloV10Pose(YoloV10):
    """Decodes pose models with suppression inside: YOLOv26's, and exports that include NMS."""

    family = "yolov10-pose"
    task = "pose"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for rows [batch, k, 6 + keypoints]."""
        if isinstance(output := signature.single(), str):
            return output
        if isinstance(said := _keypoints(signature, output.shape[2] - 6), str):
            return said
        skeleton, numbers = said
        fit = cls.fit_rows(signature, output, len(skeleton.names) * numbers)
        return fit if isinstance(fit, str) else _with_keypoints(fit, skeleton, signature)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what `YoloV10` does, and keypoints of another form where there is an object."""
        if (reason := YoloV10.contradiction(self, outputs)) is not None:
            return reason
        table = outputs[self.outputs[0]][0]
        return _no_keypoints(_shaped(table[table[:, 4] > 0, 6:], self.skeleton))

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Return one image's detections."""
        table = outputs[self.outputs[0]][row]
        found, numbers = self.objects(self.split(table), options)
        columns = table[numbers, 6:].astype(np.float32, copy=False)
        return replace(found, keypoints=_points(columns, self.skeleton))


def _keypoints(signature: Signature, columns: int) -> tuple[Skeleton, int] | str:
    """Return the keypoints, and the numbers of each, that this many columns may hold.

    Without metadata, these are a person's, after the columns of one class.
    """
    if (said := skeleton_from_metadata(signature.metadata)) is not None:
        return said
    if columns != 3 * len(PERSON.names):
        return f"{columns} more columns are not x y and a score of each of a person's 17 keypoints"
    return PERSON, 3


def _with_keypoints(fit: Fit, skeleton: Skeleton, signature: Signature) -> Fit:
    why = f"{fit.why}; {len(skeleton.names)} keypoints of each"
    # By its shape it can also be a detector of more classes.
    named = signature.task is not None
    strength = fit.strength if named else Strength.RARE
    return replace(fit, why=why, strength=strength, skeleton=skeleton)


def _no_keypoints(points: NDArray[np.float32]) -> str | None:
    """Exclude keypoints, [n, k, 2 or 3], of other numbers than pixels and probabilities."""
    return fractions(points[..., :2], "keypoints") or no_probability(
        points[..., 2:], "a keypoint's score"
    )


def _points(columns: NDArray[np.float32], skeleton: Skeleton | None) -> NDArray[np.float32]:
    """Return keypoints [n, k, 3] of columns [n, k x 2 or 3]; without a score it is 1."""
    return keypoints(_shaped(columns, skeleton))


def _shaped(columns: NDArray[np.float32], skeleton: Skeleton | None) -> NDArray[np.float32]:
    """Return columns [n, k x 2 or 3] as [n, k, 2 or 3]."""
    assert skeleton is not None, "the fit has it"
    count = len(skeleton.names)
    return columns.reshape(len(columns), count, columns.shape[1] // count)
