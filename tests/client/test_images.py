"""What a caller may call an image."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from fovea_client import images
from fovea_client.images import Url, encode_bmp, image_to_send
from fovea_client.png import write_rgb
from fovea_preprocess.image import decode_image


@given(
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
)
def test_pixels_arrive_as_they_were(pixels: np.ndarray) -> None:
    decoded = decode_image(encode_bmp(pixels))
    np.testing.assert_array_equal(decoded.pixels, pixels)
    assert decoded.orientation == 1


@given(
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
)
def test_a_png_is_without_loss(pixels: np.ndarray) -> None:
    np.testing.assert_array_equal(decode_image(write_rgb(pixels)).pixels, pixels)


def test_pixels_of_more_than_60_mib_are_compressed(monkeypatch) -> None:
    monkeypatch.setattr(images, "_MAX_UNCOMPRESSED", 100)
    frame = np.arange(8 * 10 * 3, dtype=np.uint8).reshape(8, 10, 3)
    small, large = image_to_send(frame[:3], "BGR"), image_to_send(frame, "BGR")
    assert (small[:2], large[1:4]) == (b"BM", b"PNG")
    np.testing.assert_array_equal(decode_image(large).pixels, frame[..., ::-1])
    with pytest.raises(ValueError, match="pixels must be uint8"):
        image_to_send(frame.astype(np.float32))


def test_views_that_are_not_contiguous_are_fine() -> None:
    frame = np.arange(8 * 10 * 3, dtype=np.uint8).reshape(8, 10, 3)
    for view in (frame[::2, 1::3], frame[::-1, ::-1], frame[..., ::-1], np.asfortranarray(frame)):
        np.testing.assert_array_equal(decode_image(image_to_send(view)).pixels, view)


def test_bgr_is_read_as_opencv_writes_it() -> None:
    frame = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    decoded = decode_image(image_to_send(frame[..., ::-1], "BGR"))
    np.testing.assert_array_equal(decoded.pixels, frame)
    with pytest.raises(ValueError, match="'RGB'"):
        image_to_send(frame, "bgr")


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_images_of_pillow_keep_their_pixels(mode: str) -> None:
    pixels = np.full((4, 5, 3), 51, np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    np.testing.assert_array_equal(decode_image(image_to_send(image)).pixels, pixels)


def test_an_address_of_a_stream_is_no_image() -> None:
    with pytest.raises(ValueError, match="rtsp://cam/1"):
        image_to_send("rtsp://cam/1")


def test_an_address_is_left_to_the_server() -> None:
    assert image_to_send("https://host/a.jpg") == Url("https://host/a.jpg")


def test_bytes_paths_and_files_are_the_same_image(tmp_path: Path) -> None:
    path = tmp_path / "image.bmp"
    path.write_bytes(data := encode_bmp(np.zeros((2, 3, 3), np.uint8)))
    assert image_to_send(data) is data
    assert image_to_send(path) == image_to_send(str(path)) == data
    assert image_to_send(io.BytesIO(data)) == data
    with path.open("rb") as file:
        assert image_to_send(file) == data


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_other_arrays_are_refused_with_what_is_wanted(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"uint8 \[height, width, 3\]"):
        image_to_send(pixels)


def test_other_things_are_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        image_to_send(3)
    with pytest.raises(TypeError, match="'rb'"):
        image_to_send(io.StringIO("text"))
    with pytest.raises(FileNotFoundError):
        image_to_send("there-is-no-such.jpg")
