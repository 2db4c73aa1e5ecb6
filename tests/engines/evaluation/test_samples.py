"""The images of a folder."""

import pytest
from PIL import Image

from fovea_engines.evaluation.samples import image_files, sample_images
from fovea_preprocess.errors import InvalidOption


def test_every_format_that_is_decoded_is_found_in_a_folder(tmp_path):
    formats = {
        "jpg": "JPEG",
        "png": "PNG",
        "webp": "WEBP",
        "bmp": "BMP",
        "tif": "TIFF",
        "GIF": "GIF",
    }
    for suffix, name in formats.items():
        Image.new("RGB", (8, 6), "red").save(tmp_path / f"red.{suffix}", name)
    (tmp_path / "notes.txt").write_text("no image")
    found = dict(sample_images(tmp_path))
    assert found.keys() == {f"red.{suffix}" for suffix in formats}
    assert {pixels.shape for pixels in found.values()} == {(6, 8, 3)}


def test_a_folder_without_images_lists_the_formats(tmp_path):
    with pytest.raises(InvalidOption, match=r"has no image \(\.bmp, \.gif, \.jpeg, \.jpg,"):
        image_files(tmp_path, 1)
