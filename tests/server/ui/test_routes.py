"""The page's files over HTTP, and the wheel of the Python client that the server hands out."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import Path as ZipPath
from zipfile import ZipFile

import httpx
import pytest
from packaging.requirements import Requirement
from tests.conftest import ROOT

import fovea_server.ui as page

pytestmark = pytest.mark.slow

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_gets_the_page_and_programs_name_and_version(demo_server):
    page = httpx.get(demo_server.url, headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Fovea</title>" in page.text
    assert httpx.get(demo_server.url, headers={"Accept": "TEXT/HTML"}).text == page.text
    for accept in ("*/*", "application/json", "text/html;q=0, */*"):
        answer = httpx.get(demo_server.url, headers={"Accept": accept})
        assert answer.headers["content-type"] == "application/json"
        assert (answer.status_code, answer.json()["name"]) == (200, "fovea")


def test_files_are_sent_once(demo_server):
    url = demo_server.url + "/page/page.js"
    first, plain = httpx.get(url), httpx.get(url, headers={"Accept-Encoding": "identity"})
    assert first.headers["content-type"].startswith("text/javascript")
    assert first.text == plain.text
    assert int(first.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    again = httpx.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert httpx.get(demo_server.url + "/page/feature.py").status_code == 404


def test_nothing_is_loaded_from_elsewhere(demo_server):
    policy = httpx.get(demo_server.url, headers=HTML).headers["content-security-policy"]
    sources = {source for rule in policy.split(";") for source in rule.split()[1:]}
    assert sources == {"'none'", "'self'", "blob:", "data:"}


def test_it_can_be_switched_off(serve, demo_repository):
    server = serve(demo_repository, "--no-page")
    assert httpx.get(server.url + "/page/fovea.js").status_code == 404
    assert httpx.get(server.url, headers=HTML).headers["content-type"] == "application/json"
    assert httpx.get(server.url + "/v1/models").status_code == 200


def test_the_client_is_one_small_file(demo_server):
    client = httpx.get(demo_server.url + "/page/fovea.js")
    assert len(client.content) < 15_000
    assert "import " not in client.text.partition("*/")[2]
    types = httpx.get(demo_server.url + "/page/fovea.d.ts")
    assert types.headers["content-type"] == "text/plain; charset=utf-8"


def test_scripts_are_sent_without_comments_but_the_client_as_it_is(demo_server):
    folder = Path(page.__file__).parent
    client = httpx.get(f"{demo_server.url}/page/fovea.js").text
    assert client == (folder / "fovea.js").read_text()
    for name in ("page.js", "page.css"):
        sent = httpx.get(f"{demo_server.url}/page/{name}").text
        assert not re.search(r"^\s*(//|/\*)|^ ", sent, re.MULTILINE)
        assert len(sent) > 0.6 * (folder / name).stat().st_size


def test_the_page_is_small(demo_server):
    """All that a browser may load, compressed as it is sent; the types are for programmers."""
    folder = Path(page.__file__).parent
    kinds = (".js", ".css", ".svg", ".html")
    names = {path.name for path in folder.iterdir() if path.suffix in kinds} - {"index.html"}
    paths = ["", *(f"page/{name}" for name in names)]
    answers = [httpx.get(f"{demo_server.url}/{path}", headers=HTML) for path in paths]
    assert sum(int(answer.headers["content-length"]) for answer in answers) < 62_500


def test_the_document_names_the_path_of_a_proxy(demo_server, serve, demo_repository):
    def servers(url: str, **headers: str) -> object:
        answer = httpx.get(f"{url}/openapi.json", headers=headers)
        return answer.json().get("servers")

    prefix = "X-Forwarded-Prefix"
    assert servers(demo_server.url) is None
    assert servers(demo_server.url, **{prefix: "/vision/"}) == [{"url": "/vision"}]
    for wrong in ("//evil.example", "http://evil.example", "/a b", "vision"):
        assert servers(demo_server.url, **{prefix: wrong}) is None
    server = serve(demo_repository, "--root-path=/eyes")
    assert servers(server.url) == servers(server.url, **{prefix: "/x"}) == [{"url": "/eyes"}]


PREDICT = """
import sys, fovea_client
with fovea_client.Client(sys.argv[1]) as client:
    print(fovea_client.__file__, len(client.predict("digits", "scene.jpg").detections))
"""


@pytest.fixture(scope="module")
def address(demo_server) -> str:
    """The address of the wheel, as the page tells it."""
    html = httpx.get(demo_server.url, headers=HTML).text
    [name] = re.findall(r'name="fovea-client" content="([^"]+)"', html)
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
