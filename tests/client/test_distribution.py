"""fovea-client as a distribution of its own, beside fovea-serve; both wheels are built here."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

DEPENDENCIES = Path(pytest.__file__).parents[1]
PLACE = "import fovea_client, fovea_client.testing; print(fovea_client.__file__)"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "client"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, cwd=source, check=True, capture_output=True)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


def test_the_client_is_small_and_needs_no_runtime(wheels: dict[str, Path]) -> None:
    wheel = wheels["fovea_client"]
    assert wheel.stat().st_size < 100_000
    files = ZipFile(wheel).namelist()
    assert "fovea_client/py.typed" in files
    assert any(name.endswith("licenses/LICENSE") for name in files)
    [metadata] = [each for each in ZipPath(wheel).iterdir() if each.name.endswith(".dist-info")]
    required = [Requirement(each) for each in PathDistribution(metadata).requires or []]
    always = [each.name for each in required if each.marker is None]
    assert sorted(always) == ["httpx", "numpy", "sniffio"]
    [drawing] = [each for each in required if each.marker is not None]
    assert drawing.name == "pillow"
    assert drawing.marker.evaluate({"extra": "plot"})


def test_both_are_of_one_version_and_licence() -> None:
    files = (ROOT / "pyproject.toml", ROOT / "client" / "pyproject.toml")
    server, client = (tomllib.loads(file.read_text())["project"] for file in files)
    assert server["version"] == client["version"]
    assert set(client["dependencies"]) <= set(server["dependencies"])
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "client" / "LICENSE").read_bytes()


def test_either_may_come_and_go(wheels: dict[str, Path], tmp_path: Path) -> None:
    """To install a wheel is to unpack it, and to uninstall it is to delete its files."""
    venv.create(tmp_path, with_pip=False)
    [packages] = (tmp_path / "lib").glob("python*/site-packages")
    # The .pth files in there, of which one is of this source, have no effect from here.
    (packages / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    python = str(tmp_path / "bin" / "python")

    def ask(*words: str) -> str:
        return subprocess.check_output([python, *words], cwd=tmp_path, text=True).strip()

    server, client = (ZipFile(wheels[name]) for name in ("fovea_serve", "fovea_client"))
    assert not set(server.namelist()) & set(client.namelist())
    bundled = str(packages / "fovea_server" / "bundled" / "fovea_client" / "__init__.py")
    own = str(packages / "fovea_client" / "__init__.py")
    server.extractall(packages)
    assert ask("-c", PLACE) == bundled
    client.extractall(packages)
    assert ask("-c", PLACE) == own
    shutil.rmtree(packages / "fovea_client")
    assert ask("-c", PLACE) == bundled
    client.extractall(packages)
    shutil.rmtree(packages / "fovea_server")
    assert ask("-c", PLACE) == own


def test_the_server_finds_its_client_outside_of_site_packages(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    """As after `pip install --target`: Python reads no .pth file there."""
    ZipFile(wheels["fovea_serve"]).extractall(tmp_path)
    command = [sys.executable, "-S", "-c", f"import fovea_server; {PLACE}"]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, DEPENDENCIES)))}
    place = subprocess.check_output(command, cwd=tmp_path, env=paths, text=True).strip()
    assert place == str(tmp_path / "fovea_server" / "bundled" / "fovea_client" / "__init__.py")
