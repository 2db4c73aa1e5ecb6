"""What a header says of an image's size is what decoding finds, and is read without decoding."""

import io
import struct
import subprocess
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from fovea_preprocess.errors import ImageTooLarge, InvalidImage
from fovea_preprocess.header import decoding_bytes
from fovea_preprocess.image import ImageLimits, decode_image

MOST = 64_000_000
UPRIGHT = {0x0112: 6}
FORMATS = {
    "jpeg": ("JPEG", {}),
    "turned jpeg": ("JPEG", {"exif": UPRIGHT}),
    "jpeg of ink": ("JPEG", {"mode": "CMYK"}),
    "progressive jpeg": ("JPEG", {"progressive": True, "subsampling": 0}),
    "progressive jpeg of ink": ("JPEG", {"mode": "CMYK", "progressive": True}),
    "png": ("PNG", {}),
    "png with alpha": ("PNG", {"mode": "RGBA"}),
    "webp": ("WEBP", {"method": 0}),
    "lossless webp with alpha": ("WEBP", {"lossless": True, "mode": "RGBA", "method": 0}),
    "turned webp": ("WEBP", {"exif": UPRIGHT, "method": 0}),
    "animated webp": ("WEBP", {"save_all": True, "mode": "RGB", "method": 0}),
    "gif": ("GIF", {}),
    "bmp": ("BMP", {}),
    "tiff": ("TIFF", {}),
    "big-endian tiff": ("TIFF", {"big_endian": True}),
    "tiff in one strip": ("TIFF", {"compression": "tiff_adobe_deflate", "tiffinfo": {278: 9999}}),
    "turned tiff": ("TIFF", {"compression": "tiff_lzw", "exif": UPRIGHT}),
}
# Decodes a file and letterboxes it as a classifier's, which takes most; prints how much memory.
MEASURE = """
import re, sys
import numpy as np
from fovea_preprocess.image import ImageLimits, decode_image
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec
def now(name):
    return int(re.search(name + r":\\s*(\\d+)", open("/proc/self/status").read())[1]) << 10
spec = PreprocessSpec(224, 224, fit="center-crop", resample="linear")
preprocessor, row = Preprocessor(spec), np.empty(spec.row_shape, spec.dtype)
data = open(sys.argv[1], "rb").read()
before = now("VmRSS")
preprocessor(decode_image(data, ImageLimits(max_bytes=1 << 30)).pixels, row)
print(now("VmHWM") - before)
"""


def encoded(kind: str, width: int, height: int) -> bytes:
    name, options = FORMATS[kind]
    given = dict(options)
    image = Image.linear_gradient("L").resize((width, height)).convert(given.pop("mode", "RGB"))
    if given.get("save_all"):
        given["append_images"] = [Image.new(image.mode, image.size)]
    if "exif" in given:
        tags, given["exif"] = given["exif"], Image.Exif()
        given["exif"].update(tags)
    out = io.BytesIO()
    image.save(out, name, **given)
    return out.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
def test_the_header_tells_what_decoding_takes(kind, tmp_path):
    side = 2000
    data = encoded(kind, side, side)
    (tmp_path / "image").write_bytes(data)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "image")]
    taken = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    told = decoding_bytes(data, MOST)
    # Beside the pixels, the first call of a library takes some memory of its own.
    assert taken < told + (8 << 20)
    assert told < 3 * taken


@pytest.mark.parametrize("kind", FORMATS)
def test_small_images_count_their_pixels(kind):
    image = decode_image(encoded(kind, 37, 21))
    assert {image.width, image.height} == {37, 21}
    assert decoding_bytes(encoded(kind, 37, 21), MOST) in {37 * 21 * n for n in (7, 8, 16)}


def test_other_bytes_cost_nothing():
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


def test_what_will_be_refused_costs_nothing():
    huge = bytearray(encoded("gif", 30, 20))
    huge[6:10] = b"\xff\xff\xff\xff"
    assert decoding_bytes(huge, MOST) == 0
    with pytest.raises(ImageTooLarge, match="65535x65535"):
        decode_image(huge)


def chunk(kind: bytes, body: bytes) -> bytes:
    crc = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)


TINY = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))


@pytest.mark.parametrize("lead", [TINY, chunk(b"tEXt", b"a\0b")], ids=["header", "text"])
def test_a_png_with_another_header_before_its_own_is_refused(lead):
    data = encoded("png", 300, 200)
    with pytest.raises(InvalidImage):
        decode_image(data[:8] + lead + data[8:])


def test_a_gif_whose_frame_exceeds_its_screen_counts_the_frame():
    data = bytearray(encoded("gif", 300, 200))
    data[6:10] = struct.pack("<HH", 1, 1)
    assert (decode_image(data).width, decode_image(data).height) == (300, 200)
    assert decoding_bytes(data, MOST) == 300 * 200 * 8


def test_a_gif_with_comments_and_metadata_before_its_frame():
    out = io.BytesIO()
    frames = [Image.new("L", (30, 20), grey) for grey in (0, 99)]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], comment=b"x" * 3000, loop=0)
    assert decoding_bytes(out.getvalue(), MOST) == 30 * 20 * 8
    data = out.getvalue()
    palette = 13 + (3 << 1 + (data[10] & 7))
    head, rest = data[:palette], data[palette:]
    assert rest[:1] == b"!"
    long = head + b"!\xfe" + (b"\xff" + bytes(255)) * 5000 + b"\0" + rest
    assert decode_image(long).width == 30
    assert decoding_bytes(long, MOST) == MOST * 8, "not read to its end on the event loop"


def tiff(*fields: tuple[int, int, int, int], data: bytes = b"", count: int | None = None) -> bytes:
    """A TIFF of (tag, type, count, value), whose data begins at 8."""
    entries = [
        struct.pack("<HHI", *field[:3])
        + (struct.pack("<HH", field[3], 0) if field[1] == 3 else struct.pack("<I", field[3]))
        for field in fields
    ]
    number = len(fields) if count is None else count
    return b"".join(
        [b"II*\0", struct.pack("<I", 8 + len(data)), data, struct.pack("<H", number), *entries]
    )


SIZE = [(256, 3, 1, 300), (257, 3, 1, 200)]


@pytest.mark.parametrize(
    "fields",
    [
        [*((50_000 + n, 4, 1, 0) for n in range(600)), *SIZE],
        [SIZE[0], *SIZE],
        [(256, 11, 1, 300), SIZE[1]],
        [(256, 3, 2, 300), SIZE[1]],
        [SIZE[0]],
    ],
    ids=["many fields", "a width twice", "a width as a fraction", "two widths", "no height"],
)
def test_a_tiff_of_unclear_size_counts_as_the_largest(fields):
    assert decoding_bytes(tiff(*fields), MOST) == MOST * 16


def test_fields_of_a_tiff_in_any_order_and_cut_short():
    junk = [(50_000 + n, 4, 1, 0) for n in range(20)]
    assert decoding_bytes(tiff(*junk, *SIZE), MOST) == 300 * 200 * 16
    assert decoding_bytes(tiff(*SIZE, count=99), MOST) == MOST * 16
    assert decoding_bytes(b"MM\0+" + bytes(60), MOST) == MOST * 16


def test_tiles_count_and_no_tile_is_larger_than_an_image_may_be():
    tiled = [(322, 4, 1, 9000), (323, 4, 1, 7000)]
    assert decoding_bytes(tiff(*SIZE, *tiled), MOST) == 9000 * 7000 * 16
    side, raw = 12_000, zlib.compress(bytes(12_000**2), 1)
    more = [(258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1), (322, 4, 1, side)]
    more += [(323, 4, 1, side), (324, 4, 1, 8), (325, 4, 1, len(raw))]
    bomb = tiff((256, 3, 1, 16), (257, 3, 1, 16), *more, data=raw) + bytes(4)
    assert decoding_bytes(bomb, MOST) == 0
    with pytest.raises(ImageTooLarge, match="12000x12000"):
        decode_image(bomb)
    assert decode_image(bomb, ImageLimits(max_pixels=side**2)).width == 16


@pytest.mark.parametrize(("width", "height"), [(31, 17), (1, 1)])
def test_a_bitmap_of_os2_has_its_size_in_half_the_bytes(width, height):
    header = struct.pack("<IHHHH", 12, width, height, 1, 24)
    size = -(-width * 3 // 4) * 4 * height
    data = b"BM" + struct.pack("<IHHI", 26 + size, 0, 0, 26) + header + bytes(size)
    assert decode_image(data).width == width
    assert decoding_bytes(data, MOST) == width * height * 8


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
    with pytest.raises(InvalidImage):
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
