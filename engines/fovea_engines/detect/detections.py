"""Defines the value that a detector returns, and what other models say of its objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.masks import Masks, join_masks
from fovea_engines.detect.rotated import to_source
from fovea_engines.detect.task_result import TaskResult
from fovea_engines.session import Array
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.plural import counted


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """The result of a stage of a pipeline on a crop of an object.

    Attributes:
        stage: its name.
        field: of the object, which holds the result in an answer.
        found: None where the stage failed.
        labels: of the stage's model; None where unknown.
        caption: a few words for pictures; empty where there are none.
        error: code and message, where the stage failed.
    """

    stage: str
    field: str
    found: TaskResult | None = None
    labels: tuple[str, ...] | None = None
    caption: str = ""
    error: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Detections(TaskResult):
    """Objects in one image, best first.

    Attributes:
        boxes: float32 [n, 4], corners x1 y1 x2 y2 in pixels: of the model's input as a head returns
            them, of the upright original after `to_source`. Of rotated objects, those around them.
        scores: float32 [n], 0 to 1, descending.
        class_ids: int32 [n].
        masks: of the objects; None without the task, or where the request wants none.
        keypoints: float32 [n, k, 3], x y in pixels and a score of 0 to 1; None without the task.
        rotated: float32 [n, 5], cx cy w h in pixels and the angle in radians, regular as
            `detect.rotated` defines it; None without the task.
        track_ids: int32 [n], from 1. A negative one is the id that an object gets once the tracker
            is sure of it, and 0 is for boxes of no track; None where no tracker has seen them.
        findings: what the later stages of a pipeline say of each; None for a model alone.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    masks: Masks | None = None
    keypoints: NDArray[np.float32] | None = None
    rotated: NDArray[np.float32] | None = None
    track_ids: NDArray[np.int32] | None = None
    findings: tuple[tuple[Finding, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def summary(self) -> str:
        """Return the number of objects."""
        return counted(len(self), "object")

    @property
    def arrays(self) -> list[Array]:
        """Return all arrays that it keeps in memory."""
        parts: list[Array] = [self.boxes, self.scores, self.class_ids]
        if self.masks is not None:
            parts += [*self.masks.windows, self.masks.places, self.masks.bounds]
        if self.keypoints is not None:
            parts.append(self.keypoints)
        if self.rotated is not None:
            parts.append(self.rotated)
        return parts

    def to_source(self, back: LetterboxMap) -> Self:
        """Return it in pixels of the upright image; boxes alone are clipped to it.

        An object whose box lies in the padding alone is left out.
        """
        points = self.keypoints
        if points is not None:
            points = np.concatenate([back.points_to_source(points[..., :2]), points[..., 2:]], -1)
        found = type(self)(
            back.boxes_to_source(self.boxes),
            self.scores,
            self.class_ids,
            None if self.masks is None else self.masks.to_source(back),
            points,
            None if self.rotated is None else to_source(self.rotated, back),
            self.track_ids,
            self.findings,
        )
        x1, y1, x2, y2 = found.boxes.T
        seen = ((x1 < x2) & (y1 < y2)).nonzero()[0]
        return found if len(seen) == len(found) else found.take(seen)

    def take(self, chosen: NDArray[np.intp]) -> Self:
        """Return the objects of these indices."""
        return replace(
            self,
            boxes=self.boxes[chosen],
            scores=self.scores[chosen],
            class_ids=self.class_ids[chosen],
            masks=None if self.masks is None else self.masks.take(chosen),
            keypoints=None if self.keypoints is None else self.keypoints[chosen],
            rotated=None if self.rotated is None else self.rotated[chosen],
            track_ids=None if self.track_ids is None else self.track_ids[chosen],
            findings=self.findings and tuple(self.findings[i] for i in chosen.tolist()),
        )


def join(parts: Sequence[Detections]) -> Detections:
    """Return all objects of parts of one kind, in pixels of one image, in their order."""
    masks = [part.masks for part in parts if part.masks is not None]
    points = [part.keypoints for part in parts if part.keypoints is not None]
    rotated = [part.rotated for part in parts if part.rotated is not None]
    return Detections(
        boxes=np.concatenate([part.boxes for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
        class_ids=np.concatenate([part.class_ids for part in parts]),
        masks=join_masks(masks) if masks else None,
        keypoints=np.concatenate(points) if points else None,
        rotated=np.concatenate(rotated) if rotated else None,
    )
