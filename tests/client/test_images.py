"""What a caller may call an image."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fovea_client.images import encode_bmp, image_bytes
from fovea_preprocess.image import decode_image


@given(
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
)
def test_pixels_arrive_as_they_were(pixels: np.ndarray) -> None:
    decoded = decode_image(encode_bmp(pixels))
    np.testing.assert_array_equal(decoded.pixels, pixels)
    assert decoded.orientation == 1


def test_views_that_are_not_contiguous_are_fine() -> None:
    frame = np.arange(8 * 10 * 3, dtype=np.uint8).reshape(8, 10, 3)
    for view in (frame[::2, 1::3], frame[::-1, ::-1], frame[..., ::-1], np.asfortranarray(frame)):
        np.testing.assert_array_equal(decode_image(image_bytes(view)).pixels, view)


def test_bytes_paths_and_files_are_the_same_image(tmp_path: Path) -> None:
    path = tmp_path / "image.bmp"
    path.write_bytes(data := encode_bmp(np.zeros((2, 3, 3), np.uint8)))
    assert image_bytes(data) is data
    assert image_bytes(path) == image_bytes(str(path)) == data
    assert image_bytes(io.BytesIO(data)) == data
    with path.open("rb") as file:
        assert image_bytes(file) == data


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
        image_bytes(pixels)


def test_other_things_are_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        image_bytes(3)
    with pytest.raises(TypeError, match="'rb'"):
        image_bytes(io.StringIO("text"))
    with pytest.raises(FileNotFoundError):
        image_bytes("there-is-no-such.jpg")
