"""Every kind of image that is taken, decoded and compared with the pixels it was made from."""

import io
import tracemalloc
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fovea_preprocess.errors import InvalidImage
from fovea_preprocess.image import decode_image

Pixels = NDArray[np.uint8]


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def difference(got: Pixels, wanted: Pixels) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got.astype(int) - wanted).mean())


@pytest.mark.parametrize(
    ("form", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("PNG", {"interlace": 1}, 0),
        ("BMP", {}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("TIFF", {"compression": "tiff_deflate"}, 0),
        ("TIFF", {"big_tiff": True}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("WEBP", {"quality": 95}, 3),
        ("JPEG", {"quality": 95}, 3),
        ("JPEG", {"quality": 95, "progressive": True}, 3),
        ("JPEG", {"quality": 95, "subsampling": 0}, 3),
        ("JPEG", {"quality": 95, "icc_profile": b"\0" * 70_000}, 3),
        ("GIF", {}, 9),
    ],
)
def test_colour(photo: Pixels, form: str, options: dict[str, Any], tolerance: float) -> None:
    decoded = decode_image(encode(Image.fromarray(photo), form, **options))
    assert difference(decoded.pixels, photo) <= tolerance
    assert (decoded.width, decoded.height, decoded.orientation) == (67, 90, 1)
    assert decoded.pixels.dtype == np.uint8
    assert decoded.pixels.flags.c_contiguous
    assert not decoded.pixels.flags.writeable


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA"])
@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_modes(photo: Pixels, form: str, mode: str) -> None:
    image = Image.fromarray(photo).convert(mode)
    decoded = decode_image(encode(image, form))
    assert difference(decoded.pixels, np.asarray(image.convert("RGB"))) == 0


@pytest.mark.parametrize("form", ["JPEG", "BMP", "WEBP", "GIF"])
def test_grey(photo: Pixels, form: str) -> None:
    grey = Image.fromarray(photo).convert("L")
    decoded = decode_image(encode(grey, form))
    assert difference(decoded.pixels, np.asarray(grey.convert("RGB"))) < 2


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF"])
def test_alpha_is_dropped_and_hides_nothing(photo: Pixels, form: str) -> None:
    image = Image.fromarray(photo)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    assert difference(decode_image(encode(image, form, **options)).pixels, photo) == 0


def test_palette_with_transparency(photo: Pixels) -> None:
    image = Image.fromarray(photo).quantize(64)
    decoded = decode_image(encode(image, "PNG", transparency=3))
    assert difference(decoded.pixels, np.asarray(image.convert("RGB"))) == 0


@pytest.mark.parametrize("extension", [".png", ".tiff"])
@pytest.mark.parametrize("channels", [1, 3])
def test_16_bits(photo: Pixels, extension: str, channels: int) -> None:
    levels = photo[..., :channels]
    low_byte = np.random.default_rng(1).integers(0, 256, levels.shape)
    deep = (levels.astype(np.uint16) << 8) + low_byte.astype(np.uint16)
    data = cv2.imencode(extension, deep[..., ::-1])[1].tobytes()
    wanted = np.broadcast_to(levels, photo.shape)
    assert np.abs(decode_image(data).pixels.astype(int) - wanted).max() <= 1


def test_32_bits_are_refused(photo: Pixels) -> None:
    data = encode(Image.fromarray(photo).convert("F"), "TIFF")
    with pytest.raises(InvalidImage, match="32"):
        decode_image(data)


@pytest.mark.parametrize("form", ["JPEG", "TIFF"])
def test_cmyk(photo: Pixels, form: str) -> None:
    data = encode(Image.fromarray(photo).convert("CMYK"), form, quality=95)
    assert difference(decode_image(data).pixels, photo) < 3


def test_cmyk_with_black_ink(photo: Pixels) -> None:
    ink = 255 - photo
    black = ink.min(axis=-1, keepdims=True) // 2
    image = Image.fromarray(np.concatenate((ink - black, black), axis=-1), "CMYK")
    data = encode(image, "JPEG", quality=98)
    assert difference(decode_image(data).pixels, np.asarray(image.convert("RGB"))) < 3


@pytest.mark.parametrize("mode", ["RGB", "P", "RGBA", "I;16", "CMYK"])
def test_large_images_have_no_seams(photo: Pixels, mode: str) -> None:
    large = np.tile(photo, (9, 13, 1))
    if mode == "I;16":
        image = Image.fromarray(large[..., 0].astype(np.uint16) << 8)
        large = large[..., :1].repeat(3, axis=-1)
    else:
        image = Image.fromarray(large).convert(mode)
        large = np.asarray(image.convert("RGB"))
    form, tolerance = ("JPEG", 4) if mode == "CMYK" else ("PNG", 0)
    decoded = decode_image(encode(image, form)).pixels
    assert difference(decoded, large) <= tolerance
    assert difference(decoded[-9:], large[-9:]) <= tolerance


def test_no_second_copy_is_held(photo: Pixels) -> None:
    large = np.tile(photo, (20, 30, 1))
    data = encode(Image.fromarray(large), "PNG", compress_level=0)
    tracemalloc.start()
    try:
        decode_image(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * large.nbytes


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animation_gives_its_first_frame(photo: Pixels, form: str) -> None:
    first = Image.fromarray(photo)
    rest = [ImageOps.invert(first), ImageOps.mirror(first)]
    data = encode(first, form, save_all=True, append_images=rest)
    assert difference(decode_image(data).pixels, photo) < 9


def test_multi_image_jpeg_gives_its_first(photo: Pixels) -> None:
    first = Image.fromarray(photo)
    data = encode(first, "MPO", save_all=True, append_images=[ImageOps.invert(first)], quality=95)
    assert difference(decode_image(data).pixels, photo) < 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation(photo: Pixels, form: str, orientation: int) -> None:
    # What a camera held that way stores: the image put through the inverse of the orientation.
    inverse = {
        1: photo,
        2: photo[:, ::-1],
        3: photo[::-1, ::-1],
        4: photo[::-1],
        5: photo.transpose(1, 0, 2),
        6: photo.transpose(1, 0, 2)[::-1],
        7: photo[::-1, ::-1].transpose(1, 0, 2),
        8: photo.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode_image(encode(Image.fromarray(inverse), form, exif=exif, quality=95))
    assert decoded.orientation == orientation
    assert difference(decoded.pixels, photo) < 3
    assert decoded.pixels.flags.c_contiguous


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_orientation_out_of_range_is_upright(photo: Pixels, value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    assert decode_image(encode(Image.fromarray(photo), "JPEG", exif=exif)).orientation == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_exif_does_not_spoil_the_image(photo: Pixels) -> None:
    for exif in (b"Exif\0\0nonsense", b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01"):
        data = encode(Image.fromarray(photo), "JPEG", exif=exif, quality=95)
        decoded = decode_image(data)
        assert decoded.orientation == 1
        assert difference(decoded.pixels, photo) < 3


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_one_pixel(form: str) -> None:
    decoded = decode_image(encode(Image.new("RGB", (1, 1), (200, 200, 200)), form))
    assert np.abs(decoded.pixels.astype(int) - 200).max() <= 2


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_buffers(photo: Pixels, kind: type) -> None:
    data = encode(Image.fromarray(photo), "PNG")
    assert difference(decode_image(kind(data)).pixels, photo) == 0


@pytest.mark.parametrize("order", [[0], [2, 1, 0], [2, 1, 0, 0]])
def test_12_bits_in_16(photo: Pixels, order: list[int]) -> None:
    """So do industrial cameras save them, and the high byte of such samples is black."""
    levels = photo[..., order].astype(np.uint16)
    wanted = np.broadcast_to(photo[..., [0, 1, 2] if len(order) > 1 else [0]], photo.shape)
    for shift in (4, 8):
        data = cv2.imencode(".png", levels << shift)[1].tobytes()
        assert difference(decode_image(data).pixels, wanted) == 0, shift
    if len(order) == 1:
        data = cv2.imencode(".tif", levels << 4)[1].tobytes()
        assert difference(decode_image(data).pixels, wanted) == 0
    black = cv2.imencode(".png", np.zeros_like(levels))[1].tobytes()
    assert not decode_image(black).pixels.any()


def test_webcam_jpeg_with_stray_bytes_at_its_end(photo: Pixels) -> None:
    data = encode(Image.fromarray(photo), "JPEG", quality=95)
    assert difference(decode_image(data[:-2] + bytes(3) + data[-2:]).pixels, photo) < 3
    assert difference(decode_image(data + b"trailer").pixels, photo) < 3


def test_real_photograph_as_other_decoders_see_it(shared: Path, bus: Pixels) -> None:
    path = shared / "data" / "bus.jpg"
    assert difference(bus, cv2.imread(str(path))[..., ::-1]) < 0.1
    with Image.open(path) as image:
        assert difference(bus, np.asarray(image)) < 0.1


def test_orientation_in_xmp(photo: Pixels) -> None:
    """Some editors write it only there."""
    about = '<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    rdf = f'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">{about}</rdf:RDF>'
    xmp = f'<x:xmpmeta xmlns:x="adobe:ns:meta/">{rdf}</x:xmpmeta>'.encode()

    decoded = decode_image(encode(Image.fromarray(photo), "JPEG", xmp=xmp))

    assert decoded.orientation == 6
    assert decoded.pixels.shape == (photo.shape[1], photo.shape[0], 3)
