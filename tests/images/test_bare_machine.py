"""`make run`, `make check` and `make test` on a Debian with Python, make, and nothing else."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import SHARED
from tests.images.bases import mounts
from tests.images.conftest import ROOT
from tests.images.podman import Podman
from tests.serving import free_ports

pytestmark = pytest.mark.images


@pytest.fixture
def make(bare: Podman, tmp_path: Path) -> Callable[..., str]:
    """Run a target of the Makefile on a copy of the tree; what it prints."""
    tree = tmp_path / "tree"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listed, cwd=ROOT).split(b"\0")
    for name in map(os.fsdecode, filter(None, names)):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    # Real models and images, where this machine has them.
    shared = [f"-v={SHARED}:/fovea/shared:ro"] if SHARED.is_dir() else []
    volumes = [f"-v={tree}:/fovea/tree", *shared, *mounts(bare.folder)]
    # Most of what is installed is never imported; pip takes 0 for yes here.
    lazy = "--env=PIP_NO_COMPILE=0"
    options = ("--rm", "--network=host", "--shm-size=1g", "--workdir=/fovea/tree", lazy, *volumes)
    return lambda *arguments: bare("run", *options, "localhost/bare", "make", *arguments)


@pytest.mark.timeout(900)
def test_make_run(make: Callable[..., str]) -> None:
    [port] = free_ports(1)
    shown = make("run", "ONCE=1", f"PORT={port}")
    assert "scene-1.jpg" in shown, shown


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", ["check", "test"])
def test_make_check_and_test(make: Callable[..., str], figures: list[str], target: str) -> None:
    [closing] = re.findall(r"^=* ?(\d+ passed.*?)[ =]*$", make(target), re.MULTILINE)
    figures.append(f"make {target} on a bare machine: {closing}")
