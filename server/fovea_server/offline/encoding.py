"""Writes videos frame by frame, if possible in codecs that browsers play."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

import cv2
import numpy as np

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import InvalidImage, InvalidOption
from fovea_server.offline.video import Pixels, VideoHeader

CodecName = Literal["auto", "h264", "vp9", "mpeg4"]


@dataclass(frozen=True, slots=True)
class _Codec:
    """Encoders of a codec: name and options in PyAV, and name in OpenCV.

    A name is None if the library has no encoder.
    """

    pyav: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    opencv: str | None = None


# The codecs, from the best to the worst. VP9 without these options is thirty times slower, and
# OpenCV cannot pass options. The container is always MP4: FFmpeg writes random identifiers into
# WebM files, so the files of two equal runs would differ.
_CODECS: Mapping[str, _Codec] = {
    "h264": _Codec("libx264", {"preset": "veryfast"}),
    "vp9": _Codec(
        "libvpx-vp9", {"deadline": "realtime", "cpu-used": "7", "crf": "30", "b": "0"}, "vp09"
    ),
    "mpeg4": _Codec(opencv="mp4v"),
}


def choose_codec(wanted: CodecName) -> str:
    """Return the name of the codec to use.

    If `wanted` is "auto", this is the best codec for which an encoder is installed.

    Raises:
        InvalidOption: no encoder for the codec is installed.
    """
    there = [name for name, codec in _CODECS.items() if codec.opencv or _can_use_pyav(codec)]
    if wanted == "auto":
        return there[0]
    if wanted not in there:
        raise InvalidOption(
            f"--codec {wanted} needs PyAV with this encoder ({install_extra('streams')}); "
            f"available are {' and '.join(there)}"
        )
    return wanted


def slowness(codec: str) -> str | None:
    """Return a warning if encoding with the codec is slow on this machine, otherwise None."""
    if codec != "vp9" or _can_use_pyav(_CODECS[codec]):
        return None
    return (
        "OpenCV encodes VP9 slowly, a few frames a second. For H.264, which is fast, install PyAV: "
        f"{install_extra('streams')}. --codec mpeg4 is fast, too, but browsers do not play it"
    )


def _can_use_pyav(codec: _Codec) -> bool:
    if codec.pyav is None or find_spec("av") is None:
        return False
    import av

    return codec.pyav in av.codecs_available


class VideoFile:
    """A video that is written frame by frame, to a temporary file until it is complete."""

    def __init__(self, path: Path, codec: str, rate: float, size: tuple[int, int]) -> None:
        self._path, self._frames = path, 0
        # The temporary name is a short hash, because the name of the file may already have the
        # greatest length that the file system allows.
        digest = sha256(path.name.encode("utf-8", "surrogateescape")).hexdigest()
        self._part = path.with_name(f".{digest[:16]}{path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        encoder = _PyAV if _can_use_pyav(_CODECS[codec]) else _OpenCV
        # Codecs need a width and a height of at least two pixels.
        self._size = max(2, size[0]), max(2, size[1])
        self._encoder: _Encoder = encoder(self._part.absolute(), _CODECS[codec], rate, self._size)

    def add(self, frame: Pixels) -> None:
        """Append a frame, uint8 RGB [h, w, 3]; all frames have the size of the video."""
        self._frames += 1
        if 1 in frame.shape[:2]:
            height, width = frame.shape[:2]
            frame = frame.repeat(2 if height == 1 else 1, 0).repeat(2 if width == 1 else 1, 1)
        self._encoder.add(frame)

    def finish(self) -> None:
        """Complete the video, and rename its temporary file.

        Raises:
            OSError: the file does not contain all frames.
        """
        self._encoder.close()
        # The number of frames is checked, because OpenCV does not report a full disk.
        try:
            whole = VideoHeader.read(self._part).frames == self._frames
        except InvalidImage:
            whole = False
        if not whole:
            raise OSError(
                errno.EIO,
                "a video was not written completely: check the free disk space",
                self._path,
            )
        self._part.replace(self._path)

    def abandon(self) -> None:
        """Remove the unfinished file."""
        # An earlier error has already reported that the disk is full.
        with suppress(OSError):
            self._encoder.close()
        self._part.unlink(missing_ok=True)


class _Encoder(Protocol):
    def __init__(self, path: Path, codec: _Codec, rate: float, size: tuple[int, int]) -> None: ...
    def add(self, frame: Pixels) -> None: ...
    def close(self) -> None: ...


class _OpenCV:
    def __init__(self, path: Path, codec: _Codec, rate: float, size: tuple[int, int]) -> None:
        code = cv2.VideoWriter.fourcc(*(codec.opencv or ""))
        self._writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, code, rate, size)
        if not self._writer.isOpened():
            raise OSError(f"{path} cannot be written")

    def add(self, frame: Pixels) -> None:
        self._writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))

    def close(self) -> None:
        self._writer.release()


class _PyAV:
    def __init__(self, path: Path, codec: _Codec, rate: float, size: tuple[int, int]) -> None:
        import av

        # The pixel format yuv420p halves the resolution of colours, so width and height must be
        # even. OpenCV also cuts odd sizes.
        self._width, self._height = size[0] // 2 * 2, size[1] // 2 * 2
        self._file = av.open(str(path), "w", format="mp4")
        per_second = Fraction(rate).limit_denominator(1001)
        stream = self._file.add_stream(codec.pyav or "", per_second, dict(codec.options))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = self._width, self._height, "yuv420p"
        self._stream, self._frame = stream, av.VideoFrame.from_ndarray

    def add(self, frame: Pixels) -> None:
        even = np.ascontiguousarray(frame[: self._height, : self._width])
        self._file.mux(self._stream.encode(self._frame(even, format="rgb24")))

    def close(self) -> None:
        try:
            self._file.mux(self._stream.encode())
        finally:
            self._file.close()
