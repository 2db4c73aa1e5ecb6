"""Bytes that are not a whole image, and images that would cost too much."""

import io
import pickle
import re
import struct
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fovea_preprocess.errors import ImageTooLarge, InvalidImage
from fovea_preprocess.image import ImageLimits, decode_image

Pixels = NDArray[np.uint8]

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jpeg": ("JPEG", "RGB", {}),
    "jpeg-progressive": ("JPEG", "RGB", {"progressive": True}),
    "jpeg-grey": ("JPEG", "L", {}),
    "jpeg-cmyk": ("JPEG", "CMYK", {}),
    "png": ("PNG", "RGB", {}),
    "png-palette": ("PNG", "P", {}),
    "webp": ("WEBP", "RGB", {}),
    "webp-lossless": ("WEBP", "RGB", {"lossless": True}),
    "bmp": ("BMP", "RGB", {}),
    "tiff": ("TIFF", "RGB", {}),
    "tiff-lzw": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "gif": ("GIF", "P", {}),
}

# Pillow warns of odd metadata in damaged files; the library's own filter for that is not in force
# inside pytest.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def files(photo: Pixels) -> dict[str, bytes]:
    made = {}
    for kind, (form, mode, options) in KINDS.items():
        buffer = io.BytesIO()
        Image.fromarray(photo).convert(mode).save(buffer, form, **options)
        made[kind] = buffer.getvalue()
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_truncated(files: dict[str, bytes], kind: str) -> None:
    data = files[kind]
    size = len(data)
    whole = decode_image(data).pixels
    powers = {1 << bit for bit in range(size.bit_length())}
    cuts = powers | {size - back for back in range(1, 40)} | {size * i // 20 for i in range(20)}
    for cut in sorted(cut for cut in cuts if 0 <= cut < size):
        try:
            decoded = decode_image(data[:cut])
        except InvalidImage:
            continue
        # Only bytes that say nothing about pixels may be missing: padding, an end mark.
        assert size - cut < 4, f"{cut} of {size} bytes"
        assert kind.startswith(("bmp", "gif", "jpeg"))
        assert np.array_equal(decoded.pixels, whole)


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-progressive", "jpeg-grey", "jpeg-cmyk"])
def test_jpeg_without_its_end_mark(files: dict[str, bytes], kind: str) -> None:
    data = files[kind]
    for cut in (1, 2):
        assert np.array_equal(decode_image(data[:-cut]).pixels, decode_image(data).pixels)
    # A progressive one that ends between two scans has all pixels, but not all of their bits.
    scans = [found.start() for found in re.finditer(b"\xff\xda", data)]
    assert (len(scans) > 1) == (kind == "jpeg-progressive")
    for start in scans[1:]:
        with pytest.raises(InvalidImage):
            decode_image(data[: data.rindex(b"\xff\xc4", 0, start)])


@pytest.mark.parametrize("tail", [b"\xff\xda", b"\xff\xda\0\2", b"\xff\xda\0\x08\x09\0"])
def test_jpeg_whose_scan_is_broken_off(files: dict[str, bytes], tail: bytes) -> None:
    data = files["jpeg-progressive"]
    with pytest.raises(InvalidImage):
        decode_image(data[: data.rindex(b"\xff\xda")] + tail)


def test_tiff_of_more_bands_or_bits_than_are_read(photo: Pixels) -> None:
    for pixels, form in (
        (photo.astype(np.float32), "3 bands of 32 bits"),
        (np.dstack([photo, photo[..., :2]]), "5 bands of 8 bits"),
    ):
        with pytest.raises(InvalidImage, match=f"the TIFF has {form}, "):
            decode_image(_tiff(pixels))


def _tiff(pixels: NDArray[Any]) -> bytes:
    """Write a plain TIFF: TIFF 6.0, section 2."""
    height, width, bands = pixels.shape
    data, bits = pixels.tobytes(), struct.pack("<H", pixels.itemsize * 8) * bands
    at = 8 + 2 + 9 * 12 + 4
    fields = (
        *((256, 4, 1, width), (257, 4, 1, height), (258, 3, bands, at), (259, 3, 1, 1)),
        *((262, 3, 1, 1), (273, 4, 1, at + len(bits)), (277, 3, 1, bands), (278, 4, 1, height)),
        (279, 4, 1, len(data)),
    )
    directory = b"".join(struct.pack("<HHII", *field) for field in fields)
    return b"II*\0" + struct.pack("<IH", 8, len(fields)) + directory + bytes(4) + bits + data


@pytest.mark.parametrize("kind", ["jpeg", "jpeg-progressive", "jpeg-grey", "jpeg-cmyk"])
def test_jpeg_cut_and_ended_again(files: dict[str, bytes], kind: str) -> None:
    data = files[kind]
    for tail in (b"\xff\xd9", bytes(len(data) // 2) + b"\xff\xd9"):
        with pytest.raises(InvalidImage):
            decode_image(data[: len(data) * 2 // 3] + tail)


@pytest.mark.parametrize("size", [(67, 180), (67, 45), (400, 90), (30, 90), (67, 0), (0, 90)])
def test_jpeg_that_lies_about_its_size(files: dict[str, bytes], size: tuple[int, int]) -> None:
    data = bytearray(files["jpeg"])
    start = data.find(b"\xff\xc0")
    struct.pack_into(">HH", data, start + 5, size[1], size[0])
    with pytest.raises(InvalidImage):
        decode_image(data)


@pytest.mark.parametrize("size", [(67, 180), (400, 90), (67, 0), (0, 90), (2**31 - 1, 90)])
def test_png_that_lies_about_its_size(files: dict[str, bytes], size: tuple[int, int]) -> None:
    with pytest.raises(InvalidImage):
        decode_image(resized_png(files["png"], *size))


def test_png_with_a_flipped_bit(files: dict[str, bytes]) -> None:
    data = bytearray(files["png"])
    data[len(data) // 2] ^= 1
    with pytest.raises(InvalidImage):
        decode_image(data)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_or_bearable(files: dict[str, bytes], kind: str) -> None:
    random = np.random.default_rng(3)
    for _ in range(150):
        data = bytearray(files[kind])
        # Headers come first in every format but TIFF: most of the damage goes there.
        for place in (random.beta(0.5, 2, 4) * len(data)).astype(int):
            data[place] = random.integers(256)
        try:
            decoded = decode_image(data, ImageLimits(max_pixels=1_000_000))
        except InvalidImage:
            continue
        assert decoded.pixels.ndim == 3
        assert 0 < decoded.width * decoded.height <= 1_000_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"hello, this is no image",
        b"%PDF-1.7\n",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        b"P6 1 1 255\n\0\0\0",
        b"\0\0\0\x1cftypheic\0\0\0\0",
        b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xd9",
        b"GIF89a",
        b"BM",
        b"II*\0\x08\0\0\0",
        bytes(range(256)) * 16,
    ],
)
def test_foreign(data: bytes) -> None:
    with pytest.raises(InvalidImage) as caught:
        decode_image(data)
    assert not isinstance(caught.value, ImageTooLarge)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\0\0\0\x20ftypavif\0\0\0\0", "this is AVIF, which is not supported: send JPEG, PNG"),
        (b"\0\0\0\x1cftypheic\0\0\0\0", "this is HEIC, "),
        (b"\0\0\0\x18ftypmif1\0\0\0\0", "this is HEIC, "),
        (b"\0\0\0\x20ftypisom\0\0\2\0", "this is a video (MP4 or QuickTime), "),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "this is JPEG 2000, "),
        (b"\xff\x4f\xff\x51\0\x2f", "this is JPEG 2000, "),
        (b"\xff\x0a\x00\x90", "this is JPEG XL, "),
        (b"%PDF-1.7\n", "this is PDF, "),
        (b"<?xml version='1.0'?>\n<!-- drawn -->\n<svg width='9'/>", "this is SVG, "),
        (b"\n<!DOCTYPE html><title>404</title>", "this is HTML, "),
        (b"hello, this is no image", '(it begins with "hello, t"): send JPEG, '),
        (b"\0\1\2\3", "(it begins with 00 01 02 03): send JPEG, "),
        (b"", "the image is empty: send JPEG, "),
        (b" " * 2**24 + b"<svg", 'begins with "        ")'),
    ],
)
def test_what_is_no_image_is_named(data: bytes, said: str) -> None:
    with pytest.raises(InvalidImage) as caught:
        decode_image(data)
    assert said in str(caught.value)


def resized_png(data: bytes, width: int, height: int) -> bytes:
    """The same PNG with another size in its header, and the checksum to go with it."""
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


@pytest.mark.parametrize("interlace", [0, 1])
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_png_one_row_short(photo: Pixels, mode: str, interlace: int) -> None:
    for size in ((67, 90), (8, 8), (3, 2), (1, 1)):
        buffer = io.BytesIO()
        image = Image.fromarray(photo).resize(size).convert(mode)
        image.save(buffer, "PNG", interlace=interlace)
        assert (decode_image(buffer.getvalue()).width) == size[0]
        with pytest.raises(InvalidImage):
            decode_image(resized_png(buffer.getvalue(), size[0], size[1] + 1))


def test_bombs_are_refused_by_their_header(files: dict[str, bytes]) -> None:
    bombs = {"png": resized_png(files["png"], 60_000, 60_000)}
    for kind, offset, layout in (("jpeg", files["jpeg"].find(b"\xff\xc0") + 5, ">HH"),
                                 ("gif", 6, "<HH"), ("bmp", 18, "<II")):  # fmt: skip
        bomb = bytearray(files[kind])
        struct.pack_into(layout, bomb, offset, 60_000, 60_000)
        bombs[kind] = bytes(bomb)
    for bomb in bombs.values():
        with pytest.raises(ImageTooLarge, match="60000x60000"):
            decode_image(bomb)


def test_real_bomb_is_not_decoded() -> None:
    buffer = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(buffer, "PNG", optimize=True)
    bomb = buffer.getvalue()
    assert len(bomb) < 20_000
    with pytest.raises(ImageTooLarge, match="10000x10000"):
        decode_image(bomb)


def test_limits_are_inclusive(files: dict[str, bytes]) -> None:
    data = files["png"]
    exact = ImageLimits(max_bytes=len(data), max_pixels=67 * 90)
    assert decode_image(data, exact).width == 67
    with pytest.raises(ImageTooLarge, match="8 KiB"):
        decode_image(data, ImageLimits(max_bytes=len(data) - 1))
    with pytest.raises(ImageTooLarge, match="67x90"):
        decode_image(data, ImageLimits(max_pixels=67 * 90 - 1))


def test_a_limit_above_pillows_own_is_the_one_that_counts(files: dict[str, bytes]) -> None:
    # Pillow by itself warns from 89 megapixels on, and refuses from 179 on.
    for side in (9_500, 20_000):
        data = resized_png(files["png"], side, side)
        with pytest.raises(InvalidImage):
            decode_image(data, ImageLimits(max_pixels=1_000_000_000))


def test_libraries_write_nothing_to_stderr(files: dict[str, bytes]) -> None:
    program = (
        "import sys, pickle\n"
        "from fovea_preprocess.errors import InvalidImage\n"
        "from fovea_preprocess.image import decode_image\n"
        "for data in pickle.load(sys.stdin.buffer):\n"
        "    try: decode_image(data)\n"
        "    except InvalidImage: pass\n"
    )
    random = np.random.default_rng(5)
    bad = []
    for data in files.values():
        bad += [data[: len(data) // 2], data[:40], data[: len(data) // 2] + b"\xff\xd9"]
        damaged = bytearray(data)
        for place in random.integers(0, len(data), 5):
            damaged[place] ^= 0x55
        bad.append(bytes(damaged))
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(bad), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
