"""Converts images to the bytes of a request."""

from __future__ import annotations

import os
import re
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fovea_client.png import write_rgb


@runtime_checkable
class PillowImage(Protocol):
    """The interface of a Pillow image. This package does not import Pillow."""

    def convert(self, mode: str, /) -> Any:
        """Return the image in another mode, e.g. "RGB"."""

    def getexif(self) -> Any:
        """Return the EXIF data. The client ignores it, and sends the pixels as they are stored."""


ImageSource: TypeAlias = bytes | str | os.PathLike[str] | BinaryIO | NDArray[np.uint8] | PillowImage
Channels = Literal["RGB", "BGR"]


class Picture(bytes):
    """Bytes of a JPEG or PNG file. A notebook shows the image instead of the bytes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{'PNG' if self._repr_png_() else 'JPEG'} of {len(self):,} bytes>"

    def _repr_jpeg_(self) -> bytes | None:
        return bytes(self) if self.startswith(b"\xff\xd8") else None

    def _repr_png_(self) -> bytes | None:
        return bytes(self) if self.startswith(b"\x89PNG") else None


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of an image that the server fetches."""

    address: str


Source: TypeAlias = Callable[[], bytes | Url | None]
"""Function that returns a sent image again, or None if the image is gone."""

# Largest array in bytes that is sent uncompressed. A server accepts bodies of 64 MiB, unless its
# --http-max-input-size has another limit.
_MAX_UNCOMPRESSED = 60 << 20
_OTHER_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,20}://", re.IGNORECASE)
_FILE_HEADER = struct.Struct("<2sIHHI")
_INFO_HEADER = struct.Struct("<IiiHHIIiiII")


def image_to_send(image: ImageSource, channels: Channels = "RGB") -> bytes | Url:
    """Return the bytes of an image file, or a URL for the server.

    Arrays and Pillow images are sent without loss: up to 60 MiB as BMP, larger ones as PNG. On a
    network of 1 Gbit/s, sending a BMP is faster than compressing a PNG.

    Raises:
        TypeError: the image has an unsupported type, or its file is open in text mode.
        ValueError: the array is not an image, or the URL is not http or https.
        OSError: the file cannot be read.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, str) and image.lower().startswith(("http://", "https://")):
        return Url(image)
    if isinstance(image, str) and _OTHER_ADDRESS.match(image):
        raise ValueError(
            f"{image} is not an image URL: it must begin with http:// or https://. Send the "
            "frames of a video one by one"
        )
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    if isinstance(image, np.ndarray):
        return _encode(image, channels)
    if isinstance(image, PillowImage):
        return _encode(np.asarray(image.convert("RGB")), "RGB")
    if hasattr(image, "read"):
        data = image.read()
        if isinstance(data, bytes):
            return data
        raise TypeError("the file is not open for binary reading: use open(path, 'rb')")
    raise TypeError(
        "an image must be bytes, a path, a URL, a binary file, a uint8 array or a Pillow image, "
        f"not {type(image).__name__}"
    )


def _encode(pixels: NDArray[np.uint8], channels: Channels) -> bytes:
    if pixels.nbytes <= _MAX_UNCOMPRESSED:
        return encode_bmp(pixels, channels)
    check_pixels(pixels, channels)
    return write_rgb(pixels if channels == "RGB" else pixels[:, :, ::-1])


def encode_bmp(pixels: NDArray[np.uint8], channels: Channels = "RGB") -> bytes:
    """Encode pixels, uint8 [height, width, 3], as an uncompressed 24-bit BMP.

    BMP is lossless and needs no image library. The file has a BITMAPFILEHEADER, a BITMAPINFOHEADER,
    and rows from the bottom up, BGR, each padded to a multiple of 4 bytes (Microsoft, "Bitmap
    Storage").

    Raises:
        ValueError: the pixels have another shape or dtype, or `channels` is unknown.
    """
    check_pixels(pixels, channels)
    height, width, _ = pixels.shape
    rows = np.zeros((height, (width * 3 + 3) // 4 * 4), np.uint8)
    upward = pixels[::-1] if channels == "BGR" else pixels[::-1, :, ::-1]
    rows[:, : width * 3] = upward.reshape(height, width * 3)
    start = _FILE_HEADER.size + _INFO_HEADER.size
    return b"".join(
        (
            _FILE_HEADER.pack(b"BM", start + rows.nbytes, 0, 0, start),
            _INFO_HEADER.pack(_INFO_HEADER.size, width, height, 1, 24, 0, rows.nbytes, 0, 0, 0, 0),
            rows.data,
        )
    )


def check_pixels(pixels: NDArray[np.uint8], channels: str) -> None:
    """Check the shape and dtype of pixels, and the order of their channels.

    Raises:
        ValueError: `pixels` is not uint8 [height, width, 3], or `channels` is unknown.
    """
    check_channels(channels)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
        raise ValueError(
            f"pixels must be uint8 [height, width, 3], not {pixels.dtype} {list(pixels.shape)}; "
            'the order is RGB, or BGR with channels="BGR"'
        )


def check_channels(channels: str) -> None:
    """Check the order of channels.

    Raises:
        ValueError: `channels` is neither "RGB" nor "BGR".
    """
    if channels not in ("RGB", "BGR"):
        raise ValueError(f"channels must be 'RGB' or 'BGR', not {channels!r}")


def multipart(images: Sequence[bytes]) -> tuple[str, bytes]:
    """Return the content type and the body of a multipart form with several encoded images."""
    # The boundary has 128 random bits. It is so unlikely to occur in an image that the code does
    # not check the images for it.
    boundary = secrets.token_hex(16)
    pieces: list[bytes] = []
    for index, image in enumerate(images):
        head = (
            f"--{boundary}\r\n"
            f'Content-Disposition: form-data; name="images"; filename="{index}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        pieces += (head.encode(), image, b"\r\n")
    pieces.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", b"".join(pieces)
