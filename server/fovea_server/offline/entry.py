"""Defines one image of a run, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
from PIL.Image import DecompressionBombError

from fovea_client import ImageError, as_json
from fovea_engines.results.detections import Detections
from fovea_engines.results.skeleton import Skeleton, named
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.tasks import read_result
from fovea_engines.results.vocabulary import Vocabulary
from fovea_preprocess.errors import InvalidRequest
from fovea_preprocess.image import DecodedImage, decode_image
from fovea_server.offline.sources import Source, Stamp, printable

# What reading an answer may raise, whoever has written it.
_DAMAGED = (
    *(AttributeError, LookupError, MemoryError, OSError, OverflowError, TypeError, ValueError),
    *(cv2.error, DecompressionBombError),
)


class InputImage:
    """An image as it was read: the bytes of a file, or a frame of a video.

    Attributes:
        data: of a file; None of a frame.
    """

    def __init__(self, image: bytes | DecodedImage) -> None:
        self.data = image if isinstance(image, bytes) else None
        self._image = image

    @cached_property
    def upright(self) -> DecodedImage:
        """Return it decoded; raises as `decode_image`."""
        image = self._image
        return image if isinstance(image, DecodedImage) else decode_image(image)


class Result:
    """The result of one image, as /v1 has it.

    An engine in this process writes it, a server answers it, and an earlier run has kept it. What
    is drawn is read from it, so that a run that goes on draws what one without an interruption
    does.

    Attributes:
        json: the answer for the image.
        width, height: of the upright image, pixels.
    """

    def __init__(self, json: dict[str, Any]) -> None:
        self.json = json
        self.width, self.height = int(json["width"]), int(json["height"])

    @property
    def objects(self) -> Sequence[dict[str, Any]]:
        """Return its objects; none for a model of another task."""
        found: Sequence[dict[str, Any]] = self.json.get(Detections.field, ())
        return found

    @property
    def skeleton(self) -> Skeleton | None:
        """Return the skeleton of its keypoints; None without any."""
        names = next(
            ([point["name"] for point in one.get("keypoints", ())] for one in self.objects), ()
        )
        return named(names) if names else None

    def read(self, words: Vocabulary) -> TaskResult | None:
        """Return what was found, in pixels of the upright image; None of raw tensors.

        InvalidRequest: it is damaged, or leaves the map out, as with mask=none.
        """
        try:
            return read_result(self.json, words)
        except _DAMAGED as error:
            raise InvalidRequest(
                f"the result of an image is damaged, or lacks its map ({error!r}): predict it anew"
            ) from error


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of one image, or the reason why there is none.

    Attributes:
        frame: its number in a video, from 0; None of an image.
        stamp: of the file that was read.
    """

    source: Source
    frame: int | None
    result: Result | ImageError
    stamp: Stamp | None

    @property
    def name(self) -> str:
        """Return the name of the image, from the folder that holds all sources, as text."""
        return printable(self.source.name if self.frame is None else f"{self.stem}.jpg")

    @property
    def stem(self) -> str:
        """Return the name of a file about this image, without a suffix."""
        stem = self.source.stem
        return stem if self.frame is None else f"{stem}_{self.frame:06}"

    @property
    def place(self) -> str:
        """Return the file, and the frame of a video."""
        frame = "" if self.frame is None else f" frame {self.frame}"
        return f"{self.source.file}{frame}"

    @property
    def problem(self) -> str | None:
        """Return the error of the image, in a line; None where there is none."""
        error = self.result
        return f"{self.place}: {error.message}" if isinstance(error, ImageError) else None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of the image as the server has it, with the file and the frame."""
        frame = {} if self.frame is None else {"frame": self.frame}
        result = self.result
        json = as_json(result) if isinstance(result, ImageError) else result.json
        return {"file": self.source.file} | frame | json
