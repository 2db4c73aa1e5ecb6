"""Defines one image of a run, and its result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fovea_client import ImageError, as_json
from fovea_engines.results.mask_encoding import read_size
from fovea_engines.results.registry import read_result, reading
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary, read_vocabulary
from fovea_preprocess.errors import InvalidResult
from fovea_preprocess.image import DecodedImage, decode_image
from fovea_server.offline.sources import Source, Stamp, printable


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

    An engine in this process writes it, a server answers it, and an earlier run has kept it. All
    that shows or writes it reads it from there, so that a run that goes on draws what one without
    an interruption does. Whoever takes it from somebody else calls `check`.

    Attributes:
        json: the answer for the image.
    """

    def __init__(self, json: dict[str, Any], vocabulary: Vocabulary | None = None) -> None:
        """Keep an answer in the words of its model, or where these are unknown in its own."""
        self.json = json
        self._vocabulary = vocabulary

    def check(self) -> None:
        """Raise InvalidResult if the answer is damaged."""
        _ = self.size, self.found

    @cached_property
    def size(self) -> tuple[int, int]:
        """Return the width and height of the upright image, pixels; InvalidResult."""
        with reading():
            return read_size(self.json)[::-1]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Return the words of the model, and what the answer adds to them; InvalidResult."""
        given, finds = self._vocabulary, "detections" in self.json
        if given is not None and (given.skeleton is not None or not finds):
            return given
        with reading():
            own = read_vocabulary(self.json)
        return own if given is None else replace(given, skeleton=own.skeleton)

    @cached_property
    def found(self) -> TaskResult | None:
        """Return what was found, in pixels of the upright image; None of raw tensors.

        InvalidResult: the answer is damaged.
        """
        return read_result(self.json, self.vocabulary)


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
    def checked(self) -> Result | None:
        """Return the result, None of an error; InvalidResult if it is damaged."""
        if isinstance(self.result, ImageError):
            return None
        try:
            self.result.check()
        except InvalidResult as error:
            raise error.with_text(f"{self.place}: {error}") from error
        return self.result

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
