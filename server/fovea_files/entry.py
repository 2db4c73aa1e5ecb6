"""Defines one image of a run, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fovea_client import ImageError, ImageResult, as_json, image_result
from fovea_files.sources import Source, Stamp, printable
from fovea_preprocess.image import DecodedImage, decode_image


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
    """The result of one image, as JSON and as the client has it: made of each other when needed.

    An engine in this process gives JSON, which is written as it is; a server, or an earlier run,
    gives the client's result. Pictures are drawn from the latter, so that a run that goes on draws
    what one without an interruption does.
    """

    def __init__(self, given: ImageResult | dict[str, Any]) -> None:
        self._given = given

    @cached_property
    def image(self) -> ImageResult:
        """Return it as the client has it."""
        given = self._given
        result = given if isinstance(given, ImageResult) else image_result(given)
        assert isinstance(result, ImageResult), "it has no error"
        return result

    @property
    def json(self) -> dict[str, Any]:
        """Return its JSON."""
        given = self._given
        return as_json(given) if isinstance(given, ImageResult) else given


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
    def found(self) -> ImageResult | ImageError:
        """Return the result as the client has it."""
        return self.result if isinstance(self.result, ImageError) else self.result.image

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
