"""Defines the result of a detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from fovea_engines.results.class_names import class_name
from fovea_engines.results.classes import SCORED, read_scores, scored_tensors
from fovea_engines.results.columns import SCORE, finite, pad_rows, round_columns
from fovea_engines.results.mask_encoding import encode_masks, read_masks, read_size
from fovea_engines.results.masks import Masks, join_masks
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.rotated import corners, to_source
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.stage_results import (
    STAGE_RESULTS,
    StageResult,
    read_stage_results,
    stage_results_json,
    stage_results_tensor,
)
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.text import counted

# Numbers of steps per unit for rounding: coordinates to 0.01 pixels, angles to 0.00001 radians.
_PIXEL, _ANGLE = 1e2, 1e5
_BOX_SCORE = np.array([_PIXEL] * 4 + [SCORE])
_POINT_SCORE = np.array([_PIXEL] * 2 + [SCORE])
_RECTANGLE = np.array([_PIXEL] * 4 + [_ANGLE])
_OUTLINE = np.array([_PIXEL] * 8)


@dataclass(frozen=True, slots=True, eq=False)
class Detections(TaskResult):
    """Objects in one image, best first.

    Attributes:
        boxes: float32 [n, 4], corners x1 y1 x2 y2. A head returns boxes in pixels of the model's
            input. After `to_source`, they are in pixels of the upright original image. The box of
            a rotated object is the upright box around the rotated one.
        scores: float32 [n], 0 to 1, descending.
        class_ids: int32 [n].
        masks: the masks of the objects; None if the task has no masks or the request leaves them
            out.
        keypoints: float32 [n, k, 3], x y in pixels and a score of 0 to 1; None if the task has no
            keypoints.
        rotated: float32 [n, 5], cx cy w h in pixels and the angle in radians, in the regular form
            that `rotated.py` defines; None if the task has no rotated boxes.
        track_ids: int32 [n]. The id of a confirmed track is 1 or more. The id of a track that is
            not confirmed yet is negative; after the confirmation the track has the same id without
            the sign. 0 means that the box has no track. None if the request has no tracker.
        stage_results: results of a pipeline's later stages for each object; None for a single
            model.
        outlines: float32 [n, 4, 2], corners of the rotated boxes, for a result that was read from a
            response. A response contains the rounded angle, so the exact corners cannot be computed
            from it. None if the corners are computed from `rotated`.
    """

    tasks: ClassVar[tuple[str, ...]] = ("detect", "segment", "pose", "obb", "text")
    field: ClassVar[str] = "detections"

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    masks: Masks | None = None
    keypoints: NDArray[np.float32] | None = None
    rotated: NDArray[np.float32] | None = None
    track_ids: NDArray[np.int32] | None = None
    stage_results: tuple[tuple[StageResult, ...], ...] | None = None
    outlines: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def to_json(self, vocabulary: Vocabulary, options: PredictOptions) -> dict[str, Any]:
        """Return the objects as JSON.

        An object may have a mask, keypoints, a rotated box, a track id and stage results.
        """
        objects = self._boxes_json(vocabulary)
        if self.masks is not None:
            for each, mask in zip(objects, encode_masks(self.masks, options.mask), strict=True):
                each["mask"] = mask
        if self.keypoints is not None and vocabulary.skeleton is not None:
            for each, points in zip(objects, self.keypoints, strict=True):
                each["keypoints"] = _points_json(points, vocabulary.skeleton)
        if self.rotated is not None:
            self._add_rectangles(objects, self.rotated)
        if self.track_ids is not None:
            for each, track_id in zip(objects, self.track_ids.tolist(), strict=True):
                each["track_id"] = track_id if track_id > 0 else None
        if self.stage_results is not None:
            for each, found in zip(objects, self.stage_results, strict=True):
                each |= stage_results_json(found, options)
        return {self.field: objects}

    def _boxes_json(self, vocabulary: Vocabulary) -> list[dict[str, Any]]:
        # Build dicts and not JSON text: orjson writes dicts faster than Python fills in a text
        # template.
        numbers = round_columns(np.concatenate([self.boxes, self.scores[:, None]], 1), _BOX_SCORE)
        ids = self.class_ids.tolist()
        names = {class_id: class_name(vocabulary.labels, class_id) for class_id in set(ids)}
        return [
            {
                "box": {"x1": x1, "y1": y1, "x2": x2, "y2": y2},
                "score": score,
                "class_id": class_id,
                "class_name": names[class_id],
            }
            for (x1, y1, x2, y2, score), class_id in zip(numbers, ids, strict=True)
        ]

    def _add_rectangles(
        self, objects: Sequence[dict[str, Any]], rotated: NDArray[np.float32]
    ) -> None:
        outlines = corners(rotated) if self.outlines is None else self.outlines
        rows = round_columns(rotated, _RECTANGLE)
        flat = round_columns(outlines.reshape(-1, 8), _OUTLINE)
        for each, (cx, cy, w, h, angle), (*xy,) in zip(objects, rows, flat, strict=True):
            each["rotated"] = {"cx": cx, "cy": cy, "w": w, "h": h, "angle": angle}
            each["corners"] = [{"x": x, "y": y} for x, y in zip(xy[::2], xy[1::2], strict=True)]

    @classmethod
    def from_json(cls, answer: Mapping[str, Any], vocabulary: Vocabulary) -> Self:
        """Read the objects of a response. `TaskResult.from_json` lists the errors.

        If the response has no objects, the result has no masks, keypoints or rotated boxes, because
        the response does not show the task. Boxes without a track get the track id 0.
        """
        objects: Sequence[Mapping[str, Any]] = answer[cls.field]
        class_ids, scores = read_scores(objects)
        first = objects[0] if objects else {}
        stage_results = tuple(tuple(read_stage_results(each)) for each in objects)
        tracks = [each.get("track_id") or 0 for each in objects]
        masks = [each.get("mask") for each in objects]
        return cls(
            _numbers(objects, "box", ("x1", "y1", "x2", "y2")),
            scores,
            class_ids,
            read_masks(masks, read_size(answer)) if any(masks) else None,
            _read_points(objects, vocabulary.skeleton) if "keypoints" in first else None,
            _numbers(objects, "rotated", ("cx", "cy", "w", "h", "angle"))
            if "rotated" in first
            else None,
            np.array(tracks, np.int32) if "track_id" in first else None,
            stage_results if any(stage_results) else None,
            _read_outlines(objects) if "corners" in first else None,
        )

    @classmethod
    def to_tensors(
        cls, found: Sequence[Self], vocabulary: Vocabulary, options: PredictOptions
    ) -> dict[str, Array]:
        """Convert the objects of n images to tensors.

        k is the largest number of objects in an image. If an image has fewer objects, its other
        rows are 0.

        Returns:
            ``num_detections`` int32 [n].
            ``boxes`` float32 [n, k, 4], x1 y1 x2 y2 in pixels of the upright image.
            ``scores`` float32 [n, k], ``class_ids`` int32 [n, k], ``class_names`` texts [n, k].
            ``masks`` texts [n, k] for segmentation: JSON, as in the responses of /v1.
            ``keypoints`` float32 [n, k, points, 3] for pose models: x y in pixels, and a score.
            ``rotated`` float32 [n, k, 5] for rotated boxes: cx cy w h in pixels, angle in radians.
            ``track_ids`` int32 [n, k] if the request has `track`: -1 without a confirmed track.
            ``findings`` texts [n, k] for pipelines: JSON with the fields that the stage results add
                to the object in /v1.
        """
        most = max(map(len, found))
        tensors: dict[str, Array] = {
            "num_detections": np.array([len(one) for one in found], np.int32),
            "boxes": pad_rows([one.boxes for one in found], most, np.float32),
            **scored_tensors(found, most, vocabulary.labels),
        }
        masks = [one.masks for one in found if one.masks is not None]
        if masks:
            encoded = np.full((len(found), most), b"", object)
            for row, of_image in enumerate(masks):
                for column, mask in enumerate(encode_masks(of_image, options.mask)):
                    encoded[row, column] = orjson.dumps(mask)
            tensors["masks"] = encoded
        points = [one.keypoints for one in found if one.keypoints is not None]
        if points:
            tensors["keypoints"] = pad_rows(points, most, np.float32)
        rotated = [one.rotated for one in found if one.rotated is not None]
        if rotated:
            tensors["rotated"] = pad_rows(rotated, most, np.float32)
        tracks = [
            np.where(one.track_ids > 0, one.track_ids, -1)
            for one in found
            if one.track_ids is not None
        ]
        if tracks:
            tensors["track_ids"] = pad_rows(tracks, most, np.int32)
        stage_results = [one.stage_results for one in found if one.stage_results is not None]
        if stage_results:
            tensors[STAGE_RESULTS.name] = stage_results_tensor(stage_results, options)
        return tensors

    @classmethod
    def outputs(cls, task: str, skeleton: Skeleton | None) -> list[TensorSpec]:
        """Return the specs of the tensors that `to_tensors` returns for a single model.

        The specs do not include `track_ids` and `findings`.
        """
        tensors = [
            TensorSpec("num_detections", "int32", (-1,)),
            TensorSpec("boxes", "float32", (-1, -1, 4)),
            *SCORED,
        ]
        if task == "segment":
            tensors.append(TensorSpec("masks", "object", (-1, -1)))
        if skeleton is not None:
            tensors.append(TensorSpec("keypoints", "float32", (-1, -1, len(skeleton.names), 3)))
        if task in ("obb", "text"):
            tensors.append(TensorSpec("rotated", "float32", (-1, -1, 5)))
        return tensors

    @property
    def summary(self) -> str:
        """Return the number of objects."""
        return counted(len(self), "object")

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays that the result keeps in memory."""
        parts: list[Array] = [self.boxes, self.scores, self.class_ids]
        if self.masks is not None:
            parts += [*self.masks.windows, self.masks.places, self.masks.bounds]
        if self.keypoints is not None:
            parts.append(self.keypoints)
        if self.rotated is not None:
            parts.append(self.rotated)
        return parts

    def to_source(self, back: LetterboxMap) -> Self:
        """Return the objects in pixels of the upright image.

        Boxes are clipped to the image, but keypoints and rotated boxes are not. Objects whose box
        lies entirely in the padding are left out.
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
            self.stage_results,
        )
        x1, y1, x2, y2 = found.boxes.T
        seen = ((x1 < x2) & (y1 < y2)).nonzero()[0]
        return found if len(seen) == len(found) else found.take(seen)

    def take(self, chosen: NDArray[np.intp]) -> Self:
        """Return the objects with these indices."""
        return replace(
            self,
            boxes=self.boxes[chosen],
            scores=self.scores[chosen],
            class_ids=self.class_ids[chosen],
            masks=None if self.masks is None else self.masks.take(chosen),
            keypoints=None if self.keypoints is None else self.keypoints[chosen],
            rotated=None if self.rotated is None else self.rotated[chosen],
            track_ids=None if self.track_ids is None else self.track_ids[chosen],
            stage_results=self.stage_results
            and tuple(self.stage_results[i] for i in chosen.tolist()),
            outlines=None if self.outlines is None else self.outlines[chosen],
        )


def join(parts: Sequence[Detections]) -> Detections:
    """Concatenate the objects of several results.

    All results must have the same task and be in pixels of the same image. Track ids, stage results
    and outlines are dropped.
    """
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


def _points_json(points: Array, skeleton: Skeleton) -> list[dict[str, Any]]:
    rows = round_columns(points, _POINT_SCORE)
    return [
        {"name": name, "x": x, "y": y, "score": score}
        for name, (x, y, score) in zip(skeleton.names, rows, strict=True)
    ]


def _numbers(
    objects: Sequence[Mapping[str, Any]], name: str, keys: Sequence[str]
) -> NDArray[np.float32]:
    """Read the numbers in one field of all objects, float32 [n, keys]."""
    return finite([[each[name][key] for key in keys] for each in objects], len(keys))


def _read_points(
    objects: Sequence[Mapping[str, Any]], skeleton: Skeleton | None
) -> NDArray[np.float32]:
    rows = [[(p["x"], p["y"], p["score"]) for p in each["keypoints"]] for each in objects]
    return finite(rows, len(rows[0] if skeleton is None else skeleton.names), 3)


def _read_outlines(objects: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    rows = [[(corner["x"], corner["y"]) for corner in each["corners"]] for each in objects]
    return finite(rows, 4, 2)
