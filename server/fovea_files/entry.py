"""Defines one image of a run, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fovea_client import ImageError, ImageResult
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


@dataclass(frozen=True, slots=True)
class Entry:
    """The result of one image, or the reason why there is none.

    Attributes:
        frame: its number in a video, from 0; None of an image.
        stamp: of the file that was read.
    """

    source: Source
    frame: int | None
    found: ImageResult | ImageError
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
        """Return what is wrong with the image, in a line; None where nothing is."""
        found = self.found
        return f"{self.place}: {found.message}" if isinstance(found, ImageError) else None
