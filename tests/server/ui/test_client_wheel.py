"""The server hands out the Python client as a wheel, which pip installs on any machine."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution
from zipfile import Path as ZipPath
from zipfile import ZipFile

import httpx
import pytest
from packaging.requirements import Requirement
from tests.conftest import ROOT

pytestmark = pytest.mark.browser

PREDICT = """
import sys, fovea_client
with fovea_client.Client(sys.argv[1]) as client:
    print(fovea_client.__file__, len(client.predict("digits", "scene.jpg").detections))
"""


@pytest.fixture(scope="module")
def address(demo_server) -> str:
    """The address of the wheel, as the page tells it."""
    page = httpx.get(demo_server.url, headers={"Accept": "text/html"}).text
    [name] = re.findall(r'name="fovea-client" content="([^"]+)"', page)
    return f"{demo_server.url}/page/{name}"


@pytest.fixture(scope="module")
def wheel(address, tmp_path_factory):
    path = tmp_path_factory.mktemp("wheel") / address.rpartition("/")[2]
    path.write_bytes(httpx.get(address).content)
    return path


def test_pip_installs_it_and_it_predicts(address, demo_server, scene, tmp_path):
    target = tmp_path / "target"
    (tmp_path / "scene.jpg").write_bytes(scene)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--target", target, address], check=True)
    told = subprocess.run(
        [sys.executable, "-c", PREDICT, demo_server.url],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert told[0] == str(target / "fovea_client" / "__init__.py")
    found = httpx.post(demo_server.predict_url("digits"), content=scene).json()
    assert int(told[1]) == len(found["images"][0]["detections"]) > 0


def test_it_says_of_itself_what_the_project_of_the_client_says(wheel):
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    [info] = [each for each in ZipPath(wheel).iterdir() if each.name.endswith(".dist-info")]
    about = PathDistribution(info)
    assert (about.name, about.version) == (project["name"], project["version"])
    assert about.metadata["Summary"] == project["description"]
    assert about.metadata["Requires-Python"] == project["requires-python"]
    assert about.metadata["License-Expression"] == project["license"]
    assert set(map(Requirement, about.requires)) == set(map(Requirement, project["dependencies"]))


def test_it_has_every_file_of_the_client_and_its_licence(wheel):
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        for path in (ROOT / "client" / "fovea_client").glob("*.*"):
            assert archive.read(f"fovea_client/{path.name}") == path.read_bytes()
        [licence] = [name for name in names if name.endswith("licenses/LICENSE")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert len(names) == len(set(names))
