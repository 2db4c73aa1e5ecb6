"""The photographs that engines are checked on where a build is given no images."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import fovea_engines

FOLDER = Path(fovea_engines.__file__).parent / "evaluation/photographs"
ROOT = Path(__file__).parents[2]
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
