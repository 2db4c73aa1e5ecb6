"""Writes images and videos with the results drawn in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fovea_client import ImageError, ImageResult
from fovea_drawing.drawing import draw, draw_lines, encode
from fovea_engines.session import Closing
from fovea_files.client_results import skeleton_of, task_result
from fovea_files.encoding import VideoFile
from fovea_files.entry import Entry, InputImage
from fovea_files.predictors import Predicting
from fovea_files.sources import Source
from fovea_files.tracked import VideoTracks
from fovea_files.video import VideoHeader

FOLDER = "annotated"

Drawn = bytes | NDArray[np.uint8]
"""A JPEG file, or PNG of a picture that a model has made; or the pixels of a frame."""


class Annotated(Closing):
    """The folder of annotated images; a video that is not complete when it is closed is removed."""

    def __init__(
        self,
        folder: Path,
        model: Predicting,
        codec: str | None,
        tracks: VideoTracks | None = None,
    ) -> None:
        self._tracks = tracks
        self._folder = folder / FOLDER
        self._model = model
        self._codec = codec
        self._video: tuple[Source, VideoFile] | None = None

    def draw(self, entry: Entry, image: InputImage) -> Drawn | None:
        """Draw the result; None of an error. From any thread, but in order what is followed."""
        if isinstance(entry.result, ImageError):
            return None
        result = entry.result.image
        if result.picture is not None and entry.frame is None:
            return result.picture.png
        if self._tracks is not None and entry.frame is not None:
            canvas = self._drawn(result, self._tracks.draw_below(image.upright.pixels))
            self._tracks.draw_above(canvas)
            return canvas
        canvas = self._drawn(result, image.upright.pixels)
        return encode(canvas, "image/jpeg") if entry.frame is None else canvas

    def _drawn(self, result: ImageResult, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if result.picture is not None:
            made = result.picture.pixels
            return made if made.ndim == 3 else np.dstack([made] * 3)
        if (found := task_result(result)) is None:
            return draw_lines(((line, at) for at, line in enumerate(result.lines)), pixels)
        return draw(found, pixels, self._model.labels, self._model.skeleton or skeleton_of(result))

    def write(self, entry: Entry, drawn: Drawn | None) -> None:
        """Write the next image, in order."""
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
        """Complete the video that is being written, if there is one."""
        if self._video is not None:
            self._video[1].finish()
            self._video = None

    def close(self) -> None:
        """Remove a video that is not complete. Calling it again does nothing."""
        if self._video is not None:
            self._video[1].abandon()
            self._video = None
