"""Writes images and videos with the results drawn into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fovea_client import ImageError
from fovea_engines.drawing.drawing import draw, encode
from fovea_engines.results.map_encoding import picture_png
from fovea_engines.results.new_image import NewImage
from fovea_engines.session import Closing
from fovea_server.offline.encoding import VideoFile
from fovea_server.offline.entry import Entry, InputImage
from fovea_server.offline.sources import Source
from fovea_server.offline.tracked import VideoTracks
from fovea_server.offline.video import VideoHeader

FOLDER = "annotated"

Drawn = bytes | NDArray[np.uint8]
"""A drawn image: the bytes of an image file, or the pixels of a video frame.

The file is a JPEG, or a PNG if the result is a generated image.
"""


class Annotated(Closing):
    """Writes the directory of annotated images; `close` removes a video that is not complete."""

    def __init__(self, folder: Path, codec: str | None, tracks: VideoTracks | None = None) -> None:
        self._tracks = tracks
        self._folder = folder / FOLDER
        self._codec = codec
        self._video: tuple[Source, VideoFile] | None = None

    def draw(self, entry: Entry, image: InputImage) -> Drawn | None:
        """Draw the result into the image; return None if the entry has an error.

        Any thread may call this function. The frames of a tracked video must come in order.
        """
        if isinstance(entry.result, ImageError):
            return None
        words, found = entry.result.vocabulary, entry.result.found
        assert found is not None, "raw tensors have no such format"
        if isinstance(found, NewImage) and entry.frame is None:
            return picture_png(found.levels)
        pixels = image.upright.pixels
        if self._tracks is not None and entry.frame is not None:
            canvas = draw(found, self._tracks.draw_below(pixels), words)
            self._tracks.draw_above(canvas)
            return canvas
        canvas = draw(found, pixels, words)
        return encode(canvas, "image/jpeg") if entry.frame is None else canvas

    def write(self, entry: Entry, drawn: Drawn | None) -> None:
        """Write the next drawn image; the images must come in the order of the sources."""
        if self._video is not None and self._video[0] is not entry.source:
            self.finish()
        if isinstance(drawn, bytes):
            suffix = ".png" if drawn.startswith(b"\x89PNG") else ".jpg"
            path = self._folder / f"{entry.stem}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(drawn)
        elif drawn is not None:
            if self._video is None:
                self._video = entry.source, self._open(entry.source, drawn)
            self._video[1].add(drawn)

    def _open(self, source: Source, frame: NDArray[np.uint8]) -> VideoFile:
        assert self._codec is not None, "there are videos"
        height, width = frame.shape[:2]
        rate = VideoHeader.read(source.path).rate / source.every
        path = self._folder / f"{source.stem}.mp4"
        return VideoFile(path, self._codec, rate, (width, height))

    def finish(self) -> None:
        """Complete the video that is being written; do nothing if none is being written."""
        if self._video is not None:
            self._video[1].finish()
            self._video = None

    def close(self) -> None:
        """Remove a video that is not complete; further calls do nothing."""
        if self._video is not None:
            self._video[1].abandon()
            self._video = None
