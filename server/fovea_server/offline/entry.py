"""One image of a run, and its result."""

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
    """An image as it was read: the bytes of a file, or the pixels of a video frame.

    Attributes:
        data: bytes of the file; None for a video frame.
    """

    def __init__(self, image: bytes | DecodedImage) -> None:
        self.data = image if isinstance(image, bytes) else None
        self._image = image

    @cached_property
    def upright(self) -> DecodedImage:
        """The decoded, upright image.

        Raises:
            FoveaError: one of the errors of `decode_image`.
        """
        image = self._image
        return image if isinstance(image, DecodedImage) else decode_image(image)


class Result:
    """The result of one image, in the JSON form of /v1.

    A result comes from an engine in this process, from a server, or from the journal of an earlier
    run. All output is made from the JSON form, so that a resumed run writes the same files as an
    uninterrupted run. Call `check` for a result from outside this process.

    Attributes:
        json: the JSON object of the image in a response of /v1.
    """

    def __init__(self, json: dict[str, Any], vocabulary: Vocabulary | None = None) -> None:
        """Store a result.

        `vocabulary` has the class names of the model; if it is None, they are read from the result.
        """
        self.json = json
        self._vocabulary = vocabulary

    def check(self) -> None:
        """Raise InvalidResult if the result is damaged."""
        _ = self.size, self.found

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height of the upright image in pixels.

        Raises:
            InvalidResult: the width or the height is damaged.
        """
        with reading():
            return read_size(self.json)[::-1]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The model's class names, and the skeleton from the result.

        Raises:
            InvalidResult: the skeleton is damaged.
        """
        given, finds = self._vocabulary, "detections" in self.json
        if given is not None and (given.skeleton is not None or not finds):
            return given
        with reading():
            own = read_vocabulary(self.json)
        return own if given is None else replace(given, skeleton=own.skeleton)

    @cached_property
    def found(self) -> TaskResult | None:
        """The typed result, in pixels of the upright image; None if the model returns raw tensors.

        Raises:
            InvalidResult: the result is damaged.
        """
        return read_result(self.json, self.vocabulary)


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of one image, or the error that prevented it.

    Attributes:
        source: file of the image or video.
        frame: number of the frame in a video, from 0; None for an image.
        result: the result of the image, or its error.
        stamp: size and modification time of the file when it was read; None if it could not be
            read.
    """

    source: Source
    frame: int | None
    result: Result | ImageError
    stamp: Stamp | None

    @property
    def name(self) -> str:
        """Printable name of the image, relative to the common directory of all sources."""
        return printable(self.source.name if self.frame is None else f"{self.stem}.jpg")

    @property
    def stem(self) -> str:
        """Name for output files about this image, without a suffix."""
        stem = self.source.stem
        return stem if self.frame is None else f"{stem}_{self.frame:06}"

    @property
    def place(self) -> str:
        """The path of the file, followed by the frame number in a video, for messages."""
        frame = "" if self.frame is None else f" frame {self.frame}"
        return f"{self.source.file}{frame}"

    @property
    def checked(self) -> Result | None:
        """The result; None if the image has an error.

        Raises:
            InvalidResult: the result is damaged.
        """
        if isinstance(self.result, ImageError):
            return None
        try:
            self.result.check()
        except InvalidResult as error:
            raise error.with_text(f"{self.place}: {error}") from error
        return self.result

    @property
    def problem(self) -> str | None:
        """The error of the image in one line; None if the image has a result."""
        error = self.result
        return f"{self.place}: {error.message}" if isinstance(error, ImageError) else None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of the result or error, with the file name and the frame number."""
        frame = {} if self.frame is None else {"frame": self.frame}
        result = self.result
        json = as_json(result) if isinstance(result, ImageError) else result.json
        return {"file": self.source.file} | frame | json
