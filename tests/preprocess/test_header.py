"""What a header says of an image's size is what decoding finds, and is read without decoding."""

import io
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from fovea_preprocess.errors import ImageTooLarge, InvalidImage
from fovea_preprocess.header import decoding_bytes
from fovea_preprocess.image import decode_image

MOST = 64_000_000
FORMATS = {
    "jpeg": ("JPEG", {}, 6),
    "jpeg of ink": ("JPEG", {"mode": "CMYK"}, 10),
    "progressive jpeg": ("JPEG", {"progressive": True}, 6),
    "png": ("PNG", {}, 8),
    "webp": ("WEBP", {}, 7),
    "lossless webp": ("WEBP", {"lossless": True}, 7),
    "webp with alpha": ("WEBP", {"mode": "RGBA"}, 7),
    "webp with exif": ("WEBP", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}, 7),
    "gif": ("GIF", {}, 8),
    "bmp": ("BMP", {}, 8),
    "tiff": ("TIFF", {}, 8),
    "big-endian tiff": ("TIFF", {"big_endian": True}, 8),
    "animated webp": ("WEBP", {"save_all": True, "mode": "RGB"}, 16),
}


def encoded(kind: str, width: int, height: int) -> bytes:
    name, options, _ = FORMATS[kind]
    given = dict(options)
    image = Image.effect_noise((width, height), 50).convert(given.pop("mode", "RGB"))
    if given.get("save_all"):
        given["append_images"] = [Image.new(image.mode, image.size)]
    out = io.BytesIO()
    image.save(out, name, **given)
    return out.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [(37, 21), (640, 480), (1, 5)])
def test_the_header_has_the_size(kind, size):
    data = encoded(kind, *size)
    assert decoding_bytes(data, MOST) == size[0] * size[1] * FORMATS[kind][2]
    assert (decode_image(data).width, decode_image(data).height) == size


def test_other_bytes_cost_nothing_and_no_header_costs_more_than_the_limit():
    for data in (
        b"",
        b"RIFF",
        b"\x89PNG\r\n\x1a\n",
        b"BM",
        b"GIF89a",
        b"II*\0",
        b"\xff\xd8\xff",
        b"x",
    ):
        assert decoding_bytes(data, MOST) == 0, data
    huge = b"GIF89a" + b"\xff\xff\xff\xff" + bytes(3)
    assert decoding_bytes(huge, MOST) == MOST * 8


def huge_webp(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14
    return b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f" + bits.to_bytes(4, "little") + bytes(9)


def test_a_few_bytes_that_claim_much_are_refused_before_anything_is_allocated():
    data = huge_webp(16_384, 16_384)
    assert len(data) == 34
    tracemalloc.start()
    with pytest.raises(ImageTooLarge, match="16384x16384"):
        decode_image(data)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("cut", [10, 21, 30, 200, 0.5, 0.9])
def test_a_webp_that_is_cut_is_damaged(cut):
    data = encoded("webp", 300, 200)
    with pytest.raises(InvalidImage, match="damaged"):
        decode_image(data[: cut if cut > 1 else int(len(data) * cut)])


def test_still_webp_is_decoded_as_by_pillow_and_turned_upright():
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (60, 90, 4), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "WEBP", quality=70, exif=exif)
    with Image.open(out) as opened:
        expected = np.asarray(opened.convert("RGB"))
    found = decode_image(out.getvalue())
    assert found.orientation == 6
    assert (found.pixels == np.rot90(expected, -1)).all()
