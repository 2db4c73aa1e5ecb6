"""Decodes bytes to an upright RGB image."""

from __future__ import annotations

import ctypes
import io
import logging
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageFile, _imaging
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ExifTags import Base as ExifTag
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from fovea_preprocess import gif, jpeg, tiff, webp
from fovea_preprocess.errors import ImageTooLarge, InvalidImage, NoMemory
from fovea_preprocess.png import SIGNATURE, check_png, is_deep
from fovea_preprocess.text import size_text

# First bytes of a file -> its decoder. `Image.open` is not used, because untrusted bytes must not
# reach Pillow's decoders of other formats. `ImageLimits` replaces Pillow's own pixel limit, which
# is only a warning.
_READERS: dict[bytes, type[ImageFile.ImageFile]] = {
    jpeg.SIGNATURE: JpegImageFile,
    SIGNATURE: PngImageFile,
    webp.SIGNATURE: WebPImageFile,
    b"BM": BmpImageFile,
    **dict.fromkeys(tiff.SIGNATURES, TiffImageFile),
    gif.SIGNATURE: GifImageFile,
}

# Name of an unsupported format -> pattern of the first bytes of its files.
_FOREIGN: dict[str, str] = {
    "AVIF": r".{4}ftypavi[fs]",
    "HEIC": r".{4}ftyp(hei|hev|mif1|msf1)",
    "a video (MP4 or QuickTime)": r".{4}(ftyp|moov|mdat)",
    "JPEG 2000": r"\x00{3}\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "JPEG XL": r"\xff\x0a|\x00{3}\x0cJXL \r\n\x87\n",
    "PDF": r"%PDF-",
    "SVG": r"\s*(<\?xml.{,500})?(<!--.{,500})?(<!DOCTYPE svg.{,500})?<svg",
    "HTML": r"\s*<(!doctype html|html)",
}
_SIGNATURES = [(name, re.compile(s.encode("latin-1"), re.S | re.I)) for name, s in _FOREIGN.items()]

# Exceptions that Pillow's decoders raise for damaged bytes. `Warning` is included, because a
# program may configure Python to raise warnings as errors.
_DAMAGED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    Warning,
    cv2.error,
    struct.error,
    zlib.error,
)

# Ignore Pillow's warnings about damaged metadata. The damage concerns only the sender of the image,
# so the server log should not contain it.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)
# Pillow's libtiff writes similar warnings to stderr. If Pillow is built without libtiff, these
# functions do not exist.
with suppress(AttributeError):
    _pillow = ctypes.CDLL(_imaging.__file__)
    _pillow.TIFFSetErrorHandler(None)
    _pillow.TIFFSetWarningHandler(None)

# Without this line, OpenCV writes messages about damaged files to stderr.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

# libjpeg's message about a few stray bytes after a complete image. Many webcams send them.
_STRAY_BYTES = re.compile(r"\b\d{1,2} extraneous bytes before marker 0xd9")

# libjpeg's message about a missing end marker. Some cameras omit it.
_NO_END = "Premature end of JPEG file"

# Upper limit of the samples of a 12-bit camera. Such cameras store their samples in 16-bit files.
_TWELVE_BITS = 1 << 12

# Pillow's message about a TIFF with an unsupported sample format.
_UNKNOWN_MODE = "unknown pixel mode"

# Number of pixels per conversion step. A conversion in steps does not need memory for a second full
# image in another format.
_BAND = 1 << 18

# Factor by which `brightness` reduces the sides of an image, to be fast; and the weights of red,
# green and blue in the brightness.
_APART = 8
_LUMA = np.array((0.299, 0.587, 0.114))


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of an image: encoded bytes, and pixels (width times height) of the decoded image.

    Attributes:
        max_bytes: largest number of encoded bytes.
        max_pixels: largest number of pixels.
        bytes_advice: advice in the message for an image with too many bytes.
        pixels_advice: advice in the message for an image with too many pixels.
    """

    max_bytes: int = 64 * 1024 * 1024
    max_pixels: int = 64_000_000
    bytes_advice: str = "make it smaller, or compress it more"
    pixels_advice: str = "make it smaller, or cut it into parts"


@dataclass(frozen=True, slots=True, eq=False)
class DecodedImage:
    """An upright image.

    Attributes:
        pixels: uint8 [height, width, 3], RGB, read-only; C-contiguous if `decode_image` returned
            it.
        orientation: EXIF orientation of the file, 1 to 8; `pixels` are already turned.
    """

    pixels: NDArray[np.uint8]
    orientation: int

    @property
    def width(self) -> int:
        """Return the width of the upright image, pixels."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """Return the height of the upright image, pixels."""
        return int(self.pixels.shape[0])


def looks_encoded(head: bytes) -> bool:
    """Return whether the first bytes belong to an image format that `decode_image` supports.

    Args:
        head: at least the first 8 bytes of the file.
    """
    return head.startswith(tuple(_READERS))


def decode_image(
    data: bytes | bytearray | memoryview, limits: ImageLimits = ImageLimits()
) -> DecodedImage:
    """Decode a complete JPEG, PNG, WebP, BMP, TIFF, or the first frame of a GIF.

    The alpha channel is dropped: OpenCV's `imread` drops it too, and most detectors are trained
        with
    images from `imread`. A sample of 16 bits is reduced to its high byte. If all samples of a
    16-bit PNG have at most 12 bits, as from a 12-bit camera, they are reduced to the high 8 of the
    12 bits. Colour profiles are ignored.

    Raises:
        ImageTooLarge: the image has more bytes or pixels than `limits` allows. It was not decoded.
        InvalidImage: the format is unknown, or the image is incomplete or damaged.
        NoMemory: this machine has too little free memory at the moment.
    """
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(
            f"the image exceeds the limit of {size_text(limits.max_bytes)}: {limits.bytes_advice}"
        )
    if isinstance(data, memoryview):
        data = bytes(data)
    width = height = 0
    try:
        if data.startswith(jpeg.SIGNATURE):
            height, width, kind, _ = simplejpeg.decode_jpeg_header(data)
            _check_size(width, height, limits)
            pixels = _decode_jpeg(data, width, height, cmyk=kind in ("CMYK", "YCCK"))
            # Most JPEG files of small images have no metadata. Without `has_metadata`, Pillow
            # would read the metadata, which takes as long as decoding a small image.
            orientation = _orientation(_open(data)) if jpeg.has_metadata(data) else 1
        elif data.startswith(webp.SIGNATURE):
            size = webp.read_webp_header(data)
            width, height = size.width, size.height
            _check_size(width, height, limits)
            # Use Pillow only for animations: its WebP decoder needs more memory, because it
            # allocates two 32-bit images when it opens a file.
            pixels = _load(_open(data)) if size.animated else _decode_webp(data)
            orientation = _orientation_in(webp.exif_of(data))
        else:
            data = bytes(data)
            header = _open(data)
            width, height = header.size
            _check_size(width, height, limits)
            _check_storage(header, data, limits)
            orientation = _orientation(header)
            pixels = _load(header)
            if isinstance(header, PngImageFile) and is_deep(data):
                pixels = _decode_12_bits(pixels, data)
            if isinstance(header, TiffImageFile):
                # Pillow has already turned the TIFF upright.
                return DecodedImage(_freeze(pixels), orientation)
        return DecodedImage(_freeze(_turn_upright(pixels, orientation)), orientation)
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(f"the image is too large: {error}") from error
    except _DAMAGED as error:
        if _lacks_memory(error, width * height):
            raise NoMemory(
                f"not enough memory is free to decode an image of {width}x{height} pixels: send "
                "it again later, or send a smaller image"
            ) from error
        raise InvalidImage(_unreadable(data, error)) from error


def _unreadable(data: bytes | bytearray, error: Exception) -> str:
    if str(error) == _UNKNOWN_MODE and (form := tiff.form_of(data)) is not None:
        return (
            f"the TIFF has {form}, but only 1, 3 or 4 bands of 8 or 16 bits are supported: save "
            "the red, green and blue bands with 8 bits each"
        )
    return f"the image is damaged or incomplete ({error}): send the whole file as it is"


def brightness(image: bytes | bytearray | DecodedImage) -> float:
    """Return the mean brightness of an image, 0 to 1. A JPEG is decoded at a reduced size.

    Raises:
        InvalidImage, ImageTooLarge, NoMemory: `decode_image` describes them.
    """
    if not isinstance(image, DecodedImage) and image.startswith(jpeg.SIGNATURE):
        with suppress(ValueError):
            height, width, *_ = simplejpeg.decode_jpeg_header(image)
            least = {"min_height": height // _APART, "min_width": width // _APART}
            grey = simplejpeg.decode_jpeg(image, "GRAY", fastdct=True, strict=False, **least)
            return float(grey.mean()) / 255
    decoded = image if isinstance(image, DecodedImage) else decode_image(image)
    return float((decoded.pixels[::_APART, ::_APART] @ _LUMA).mean()) / 255


def _lacks_memory(error: Exception, pixels: int) -> bool:
    """Return whether decoding an image failed because there was too little free memory.

    Some decoders report a failed allocation as a damaged image. Therefore this function tries to
    allocate the memory that an image of this size needs.
    """
    if isinstance(error, MemoryError):
        return True
    try:
        np.empty((pixels, 8), np.uint8)
    except MemoryError:
        return True
    return False


def _freeze(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    pixels.flags.writeable = False
    return pixels


def _open(data: bytes | bytearray) -> ImageFile.ImageFile:
    for prefix, reader in _READERS.items():
        if data.startswith(prefix):
            return reader(io.BytesIO(data))
    raise InvalidImage(f"{_description(data)}: send JPEG, PNG, WebP, BMP, TIFF or GIF")


def _description(data: bytes | bytearray) -> str:
    """Return a sentence that describes bytes in an unsupported format."""
    if not data:
        return "the image is empty"
    for name, signature in _SIGNATURES:
        if signature.match(data[:2048]):
            return f"this is {name}, which is not supported"
    head = data[:8]
    readable = head.isascii() and head.decode().isprintable()
    words = f'"{head.decode()}"' if readable else head.hex(" ")
    return f"not an image in a known format (it begins with {words})"


def _check_size(width: int, height: int, limits: ImageLimits) -> None:
    if width < 1 or height < 1:
        raise InvalidImage(f"the image is empty ({width}x{height})")
    if width * height > limits.max_pixels:
        raise ImageTooLarge(
            f"the image has {width}x{height} pixels, which exceeds the limit of "
            f"{limits.max_pixels / 1000000.0:g} megapixels: {limits.pixels_advice}"
        )


def _check_storage(image: ImageFile.ImageFile, data: bytes, limits: ImageLimits) -> None:
    """Check properties that Pillow does not check, before decoding takes memory.

    Raises:
        InvalidImage: the PNG is incomplete.
        ImageTooLarge: the tiles of a TIFF are too large. The decoder keeps a whole tile in memory.
    """
    if isinstance(image, PngImageFile):
        check_png(data)
    if not isinstance(image, TiffImageFile):
        return
    sides = [image.tag_v2.get(tag, 0) for tag in tiff.TILE_SIDES]
    if all(isinstance(side, int) for side in sides) and prod(sides) > limits.max_pixels:
        raise ImageTooLarge(
            f"the image is stored in tiles of {sides[0]}x{sides[1]} pixels, which exceed the "
            f"limit of {limits.max_pixels / 1000000.0:g} megapixels: save it in smaller tiles"
        )


def _orientation(image: ImageFile.ImageFile) -> int:
    try:
        return _orientation_of(image.getexif())
    except _DAMAGED:
        return 1


def _orientation_in(metadata: bytes) -> int:
    exif = Image.Exif()
    try:
        exif.load(metadata)
        return _orientation_of(exif)
    except _DAMAGED:
        return 1


def _orientation_of(exif: Image.Exif) -> int:
    value = exif.get(ExifTag.Orientation, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _decode_jpeg(
    data: bytes | bytearray, width: int, height: int, *, cmyk: bool
) -> NDArray[np.uint8]:
    """Decode with libjpeg-turbo.

    All decoders fill in the missing pixels of a JPEG that is cut off. Only libjpeg-turbo reports
    this.
    """
    # Decode into a buffer of the size that was checked. If the decoder reads another size from the
    # file, it cannot use more memory.
    buffer = np.empty((height, width, 4 if cmyk else 3), np.uint8)
    colorspace = "CMYK" if cmyk else "RGB"
    try:
        pixels = simplejpeg.decode_jpeg(data, colorspace, buffer=buffer)
    except ValueError as error:
        if _STRAY_BYTES.search(str(error)):
            pixels = simplejpeg.decode_jpeg(data, colorspace, buffer=buffer, strict=False)
        elif _NO_END in str(error) and (whole := jpeg.add_end_mark(data)) is not None:
            pixels = simplejpeg.decode_jpeg(whole, colorspace, buffer=buffer)
        else:
            raise
    if not cmyk:
        return np.asarray(pixels)
    # The values are inverted: 255 means no ink. Adobe and all other writers of CMYK JPEG do this.
    rgb = np.empty((height, width, 3), np.uint8)
    for rows in _bands(width, height):
        light = pixels[rows, :, :3] * pixels[rows, :, 3:].astype(np.uint16)
        rgb[rows] = (light + 127) // 255
    return rgb


def _decode_webp(data: bytes | bytearray) -> NDArray[np.uint8]:
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise ValueError("libwebp cannot decode the image")
    return np.asarray(pixels, np.uint8)


def _load(image: ImageFile.ImageFile) -> NDArray[np.uint8]:
    """Decode an image with Pillow, and close it.

    Closing frees Pillow's copy of the pixels, which takes more memory than the result.
    """
    image.load()
    if image.mode in ("I", "F"):
        raise InvalidImage("the image has 32 bits per sample: convert it to 8 or 16 bits")
    deep = image.mode.startswith("I;16")
    shift = 4 if deep and int(np.asarray(image).max()) < _TWELVE_BITS else 8
    rgb = np.empty((image.height, image.width, 3), np.uint8)
    for rows in _bands(image.width, image.height):
        band = image.crop((0, rows.start, image.width, rows.stop))
        if deep:
            rgb[rows] = (np.asarray(band) >> shift)[..., None]
        else:
            rgb[rows] = np.asarray(band.convert("RGB"))
    image.close()
    return rgb


def _decode_12_bits(pixels: NDArray[np.uint8], data: bytes) -> NDArray[np.uint8]:
    """Decode a 16-bit PNG again if its samples have 12 bits.

    The high bytes of 12-bit samples are at most 15, so `pixels` is nearly black.
    """
    if pixels.max() >= _TWELVE_BITS >> 8:
        return pixels
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
    deep = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if deep is None or deep.shape != pixels.shape:
        return pixels
    for rows in _bands(pixels.shape[1], pixels.shape[0]):
        pixels[rows] = deep[rows] // 16
    return pixels


def _bands(width: int, height: int) -> Iterator[slice]:
    """Yield slices of rows that together cover an image, from top to bottom."""
    step = max(1, _BAND // width)
    for top in range(0, height, step):
        yield slice(top, min(top + step, height))


def _turn_upright(pixels: NDArray[Any], orientation: int) -> NDArray[np.uint8]:
    """Undo an EXIF orientation (EXIF 2.32, tag 0x0112)."""
    match orientation:
        case 2:
            pixels = cv2.flip(pixels, 1)
        case 3:
            pixels = cv2.rotate(pixels, cv2.ROTATE_180)
        case 4:
            pixels = cv2.flip(pixels, 0)
        case 5:
            pixels = cv2.transpose(pixels)
        case 6:
            pixels = cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE)
        case 7:
            pixels = cv2.flip(cv2.transpose(pixels), -1)
        case 8:
            pixels = cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE)
    return np.ascontiguousarray(pixels)
