"""The images of a folder, and the photographs that engines are checked on without one."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from PIL import Image

import fovea_engines
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
    with pytest.raises(InvalidOption):
        image_files(tmp_path, 1)


FOLDER = Path(fovea_engines.__file__).parent / "evaluation/photographs"
ROOT = Path(__file__).parents[3]
FILES = sorted(file.name for file in FOLDER.glob("*.jpg"))


def test_each_is_small_and_its_licence_is_told():
    licences = {}
    for line in (FOLDER / "README.md").read_text().splitlines():
        if line.startswith("| ") and ".jpg" in line:
            name, _, licence, source = (cell.strip() for cell in line.strip("|").split("|"))
            licences[name] = licence
            assert source
    assert sorted(licences) == FILES
    assert len(FILES) == 3
    for file in FILES:
        assert licences[file].startswith(("CC0 1.0", "public domain"))
        assert (FOLDER / file).stat().st_size <= 60_000


def test_the_wheel_has_them(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    [wheel] = tmp_path.glob("*.whl")
    names = ZipFile(wheel).namelist()
    for file in [*FILES, "README.md"]:
        assert f"fovea_engines/evaluation/photographs/{file}" in names
