"""Files of maps, as Pillow and the client's own reader read them."""

import io

import numpy as np
import pytest
from PIL import Image

from fovea_client.png import read_grey, read_levels
from fovea_engines.results.colours import colour
from fovea_engines.results.map_encoding import NOTHING, class_png, depth_png, mask_png, picture_png

SHAPES = [(1, 1), (7, 5), (120, 161)]


def opened(data):
    image = Image.open(io.BytesIO(data))
    assert (np.asarray(image) == read_grey(data)).all()
    return image


@pytest.mark.parametrize("shape", SHAPES)
def test_classes_are_indices_in_the_colours_of_the_drawings(shape):
    ids = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint16)
    image = opened(class_png(ids))
    assert image.mode == "P"
    assert (np.asarray(image) == ids).all()
    assert image.convert("RGB").getpixel((0, 0)) == colour(int(ids[0, 0]))


def test_nothing_is_the_greatest_index():
    ids = np.array([[3, NOTHING], [254, NOTHING]], np.uint16)
    assert read_grey(class_png(ids)).tolist() == [[3, 255], [254, 255]]
    many = np.array([[3, NOTHING], [255, NOTHING]], np.uint16)
    assert opened(class_png(many)).mode == "I;16"
    assert (read_grey(class_png(many)) == many).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_has_255_steps(shape):
    values = np.random.default_rng(0).uniform(size=shape).astype(np.float32)
    assert np.asarray(opened(mask_png(values))) / 255 == pytest.approx(values, abs=0.5 / 254)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0, 1e-3, 100])
def test_a_depth_is_a_level_times_the_scale_plus_the_offset(shape, size):
    values = 5 + size * np.random.default_rng(0).normal(size=shape).astype(np.float32)
    file = depth_png(values)
    found = np.asarray(opened(file.png), np.float64) * file.scale + file.offset
    assert found == pytest.approx(values, abs=float(np.ptp(values)) / 65535 + 1e-6)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_file_is_a_value_error(data):
    with pytest.raises(ValueError, match="PNG file"):
        read_grey(data)


def test_files_of_others_are_refused():
    for mode in ("RGB", "LA"):
        file = io.BytesIO()
        Image.new(mode, (4, 4)).save(file, "PNG")
        with pytest.raises(ValueError, match="is not read"):
            read_grey(file.getvalue())


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_keeps_its_levels(channels):
    levels = np.random.default_rng(0).integers(0, 256, (13, 17, channels), np.uint8)
    found = read_levels(picture_png(levels)).reshape(levels.shape)
    np.testing.assert_array_equal(found, levels)
