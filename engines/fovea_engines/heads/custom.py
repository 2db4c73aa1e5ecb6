"""Decodes outputs with a class that a user wrote in a Python file.

The user's class decodes the outputs of one image. `FileHead` adapts the class to the interface
`Head`: it passes copies of the outputs, checks the result, and reports the line of the file that
caused an error.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import current_thread, main_thread
from traceback import walk_tb
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.heads.base import Detector, Head
from fovea_engines.heads.signature import Fit, Signature, Strength
from fovea_engines.results.classes import Classes
from fovea_engines.results.detections import Detections
from fovea_engines.results.nms import choose
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.registry import RESULT_OF
from fovea_engines.results.skeleton import Skeleton
from fovea_engines.results.task_result import TaskResult
from fovea_engines.session import Array
from fovea_preprocess.errors import (
    FoveaError,
    InferenceFailed,
    UnsupportedModel,
)

MODULE = "fovea_head_"
"""Prefix of the names of modules that are created from the users' files."""

_MOST_LETTERS = 300
# Largest score that counts as 1. Rounding to float16 changes a score by less than this tolerance.
_ONE = 1.001


class CustomHead(ABC):
    """Decodes the outputs of a model for one image, for models that Fovea does not support.

    A user's file has one subclass. One instance decodes images in several threads at once, so it
    must not store data of an image.

    Attributes:
        outputs: names of the model's outputs that `decode` reads.
        task: task of the result: detect, segment, pose, obb (`Detections`), classify (`Classes`),
            or another of `TaskResult.tasks`.
        labels: class names by id; if empty, the names of the model or of --labels are used.
        preprocess: fields of `PreprocessSpec` for the preprocessing of the training. The defaults
            are RGB, values of 0 to 1, and a letterbox around the centre.
        skeleton: names of the keypoints; None if there are none.
        batched: False if the outputs have no batch axis, such as [boxes, 6]. Then the model gets
            one image at a time.
        size: (height, width) of the model's input in pixels.
    """

    outputs: ClassVar[tuple[str, ...]] = ()
    task: ClassVar[str] = "detect"
    labels: ClassVar[tuple[str, ...]] = ()
    preprocess: ClassVar[Mapping[str, Any]] = {}
    skeleton: ClassVar[Skeleton | None] = None
    batched: ClassVar[bool] = True

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    @abstractmethod
    def decode(self, outputs: Mapping[str, Array], options: PredictOptions) -> TaskResult:
        """Decode the result for one image, in pixels of the model's input.

        Args:
            outputs: arrays of the outputs by name. Each is [1, ...] if `batched` is True, otherwise
                it has the shape that the model returns. Floats are converted to float32. The method
                may change and keep the arrays.
            options: options of the request. Afterwards Fovea filters objects by `conf`, `classes`
                and `max_det`, and sorts them. This method must suppress duplicates, for example
                with `api.detections`.

        Returns:
            The result, of the type that belongs to `task`.
        """


class FileHead(Head):
    """The family of one file.

    Attributes:
        written: the class in the file.
        file: path of the file, for messages.
        content: bytes of the file.
    """

    sized: ClassVar[bool] = True
    written: ClassVar[type[CustomHead]]
    file: ClassVar[str]
    content: ClassVar[bytes]

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Accept the outputs that the file names.

        Raises:
            UnsupportedModel: the model lacks an output.
        """
        there, named = [tensor.name for tensor in signature.outputs], cls.written.outputs
        if missing := [name for name in named if name not in there]:
            raise UnsupportedModel(
                f"{cls.file} reads the output {', '.join(missing)}, but the model only has "
                f"{', '.join(there)}: correct `outputs` in the file"
            )
        count, skeleton = len(cls.labels) or None, cls.written.skeleton
        return Fit(tuple(named), count, f"decoded by {cls.file}", Strength.ON_REQUEST, skeleton)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Check that outputs for one image have a batch axis, if the class is `batched`.

        Raises:
            UnsupportedModel: an output has no batch axis.
        """
        for name in self.outputs if self.written.batched else ():
            if (shape := outputs[name].shape)[:1] != (1,):
                raise UnsupportedModel(
                    f"output {name} has the shape {list(shape)} for one image, so it has no batch "
                    f"axis: set `batched = False` in the class of {self.file}"
                )
        return None

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield the outputs of one image."""
        for name in self.outputs:
            yield f"output {name}", self._part(outputs[name], row)

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> TaskResult:
        """Decode one image with the class of the file.

        Raises:
            InferenceFailed: the code of the file failed, or its result is invalid. The message has
                the file, the line and the reason.
        """
        return self.decode_checked(outputs, row, options)

    def decode_checked(
        self, outputs: Mapping[str, Array], row: int, options: PredictOptions
    ) -> TaskResult:
        """Decode one image and check the result. `decode` describes the errors."""
        parts = {
            name: self._part(outputs[one], row)
            for name, one in zip(self.written.outputs, self.outputs, strict=True)
        }
        given = {
            name: part.astype(np.float32) if part.dtype.kind == "f" else part.copy()
            for name, part in parts.items()
        }
        with named_lines(self.file, InferenceFailed), np.errstate(all="ignore"):
            found = self._own.decode(given, options)
        kind = RESULT_OF[self.task]
        if not isinstance(found, kind):
            raise self._make_error(
                f"decode returns {type(found).__name__}, but a head of task {self.task} must "
                f"return {kind.__name__}"
            )
        if isinstance(found, Detections):
            return self._objects(found, options)
        if isinstance(found, Classes):
            return self._classes(found, options)
        for array in map(np.asarray, found.arrays):
            if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
                raise self._make_error(
                    f"{kind.__name__} must contain finite numbers, but has NaN, infinity or the "
                    f"type {array.dtype}"
                )
        return found

    def _part(self, array: Array, row: int) -> Array:
        return array[row : row + 1] if self.written.batched else array

    @cached_property
    def _own(self) -> CustomHead:
        assert self.size is not None, "it is sized"
        with named_lines(self.file, InferenceFailed):
            return self.written(self.size)

    def _classes(self, found: Classes, options: PredictOptions) -> Classes:
        """Check classes, and filter and sort them by the options of the request."""
        class_ids, scores = self._check_scores(found)
        kept = np.argsort(-scores, kind="stable")
        if options.classes is not None:
            kept = kept[np.isin(class_ids[kept], options.classes)]
        return Classes(class_ids[kept[: options.top_k]], scores[kept[: options.top_k]])

    def _check_scores(
        self, found: Classes | Detections
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return checked copies of class ids and scores."""
        count = np.shape(found.scores)[:1]
        scores = self._array("scores", found.scores, count)
        if scores.size and not 0 <= scores.min() <= scores.max() <= _ONE:
            raise self._make_error(
                f"scores are from {scores.min():g} to {scores.max():g}; they must be from 0 to 1"
            )
        class_ids = self._array("class_ids", found.class_ids, count, np.int32)
        classes = self.num_classes or sys.maxsize
        if class_ids.size and not 0 <= class_ids.min() <= class_ids.max() < classes:
            known = f"from 0 to {classes - 1}" if self.num_classes else "0 or more"
            raise self._make_error(
                f"class_ids are from {class_ids.min()} to {class_ids.max()}; they must be {known}"
            )
        return class_ids, scores.clip(max=1)

    def _objects(self, found: Detections, options: PredictOptions) -> Detections:
        """Check objects, and filter and sort them by the options of the request."""
        class_ids, scores = self._check_scores(found)
        boxes = self._array("boxes", found.boxes, (len(scores), 4))
        turned = (boxes[:, 2:] < boxes[:, :2]).any(axis=1) & (scores >= options.conf)
        if turned.any():
            raise self._make_error(
                f"a box of the result is {boxes[turned][0].round(1).tolist()}; it must be x1 y1 "
                "x2 y2: `corners` converts cx cy w h"
            )
        masks = keypoints = rotated = None
        if self.task == "segment" and options.mask != "none":
            masks = found.masks
            if masks is None or len(masks) != len(scores):
                raise self._make_error(
                    "decode returns objects without masks: the task segment needs one mask for "
                    "each object"
                )
        if (skeleton := self.written.skeleton) is not None:
            points = len(skeleton.names)
            keypoints = self._array("keypoints", found.keypoints, (len(scores), points, 3))
        if self.task in ("obb", "text"):
            rotated = self._array("rotated", found.rotated, (len(scores), 5))
        objects = Detections(boxes, scores, class_ids, masks, keypoints, rotated)
        return objects.take(choose(boxes, scores, class_ids, options, suppress=False))

    def _array(
        self, name: str, value: object, shape: tuple[int, ...], dtype: type[Any] = np.float32
    ) -> NDArray[Any]:
        """Check the shape and values of an array in the result, and return a copy of this dtype."""
        array = np.asarray(value)
        whole = dtype is np.int32
        if array.dtype.kind not in ("iu" if whole else "iuf") or array.shape != shape:
            wanted = f"{'whole numbers' if whole else 'numbers'} [{', '.join(map(str, shape))}]"
            actual = "None" if value is None else f"{array.dtype} {list(array.shape)}"
            raise self._make_error(f"{name} of the result are {actual}; they must be {wanted}")
        if not np.isfinite(array).all():
            raise self._make_error(f"{name} of the result contain NaN or infinity")
        return array.astype(dtype)

    def _make_error(self, reason: str) -> InferenceFailed:
        written = self.written.decode
        line = written.__code__.co_firstlineno if isinstance(written, FunctionType) else 1
        return InferenceFailed(f"{self.file}, line {line}: {reason}")


class FileDetector(FileHead, Detector):
    """The family of a user's file that returns `Detections`."""

    def has_evidence(self, outputs: Mapping[str, Array]) -> bool:
        """Return whether `decode` finds an object. Then its position can be checked."""
        return len(self.decode(outputs, 0, PredictOptions(mask="none"))) > 0

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> Detections:
        """Decode the objects of one image. `FileHead.decode` describes the errors."""
        found = self.decode_checked(outputs, row, options)
        assert isinstance(found, Detections), "it is checked"
        return found


@contextmanager
def named_lines(shown: str, kind: type[FoveaError]) -> Iterator[None]:
    """Raise `kind` in place of any error in the code of a file. The message contains the line.

    SystemExit and KeyboardInterrupt from this code are also converted, so that the code cannot end
    the program.
    """
    try:
        yield
    except FoveaError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if _raised_by_signal(error):
            raise
        lines = [
            line
            for frame, line in walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__", "").startswith(MODULE)
        ]
        if not lines and isinstance(error, SyntaxError) and error.lineno is not None:
            lines = [error.lineno]
        where = f"{shown}, line {lines[-1]}" if lines else shown
        reason = " ".join(str(error).split())[:_MOST_LETTERS]
        raise kind(f"{where}: {type(error).__name__}: {reason}") from error


def _raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised the error, for example to stop the program.

    The innermost frame of such an error belongs to the signal handler. Python calls the handler
    from the code that the signal interrupts.
    """
    if isinstance(error, Exception) or current_thread() is not main_thread():
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__", "")
    own = module.startswith("fovea_") and not module.startswith(MODULE)
    return isinstance(error, KeyboardInterrupt) or own
