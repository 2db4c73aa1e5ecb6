"""A disk that is full is named as that, whatever file it is found with."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fovea_engines.repository.repository import ModelRepository

pytestmark = pytest.mark.slow

PAGE = 4096


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_it_is_a_sentence_with_what_is_free_and_needed(
    fovea, tiny_model, tmp_path, small_disk, backend
):
    build = ("build", tiny_model, "--backend", backend, "--repository")
    assert fovea(*build, tmp_path / "r")[0] == 0
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "r" / "tiny" / "1").iterdir()}
    engine = sum(-(-size // PAGE) for name, size in sizes.items() if name.startswith("model."))
    # Pages that are free -> files of which one does not fit.
    for pages, files in ((0, "model"), (engine - 1, "model"), (engine, r"(card|worst)")):
        (small_disk / "fill").write_bytes(bytes(2**20 - pages * PAGE))
        code, _, err = fovea(*build, small_disk / "r")
        assert code == 1
        told = rf"/r/\.tiny\.staging-\w+/{files}\.\w+ cannot be read or written "
        told += r"\(the disk is full: 0\.\d\d MB were free, 0\.\d\d MB are needed\)"
        assert re.search(told + ": nothing was published", err.splitlines()[-1]), err
        assert ModelRepository(small_disk / "r").models() == ()
        # Nothing is left that fills it.
        assert not list((small_disk / "r").iterdir())
