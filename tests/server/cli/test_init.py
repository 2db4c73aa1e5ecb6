"""`fovea init`: what it says is done, word for word, and ends with boxes."""

import re
import shlex
import subprocess

import pytest
from tests.forked import on_path
from tests.serving import free_ports, wait_until_ready

pytestmark = pytest.mark.slow

# From anywhere: the working folder is that of the fixture `fovea`.
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(said: str) -> list[str]:
    """The commands that it says to type, in their order."""
    return re.findall(r"^    (.+)$", said, re.MULTILINE)


@pytest.fixture
def own_ports(monkeypatch, tmp_path_factory):
    """`fovea` is on the path, and serves on ports of its own: that of HTTP."""
    ports = free_ports(3)
    for kind, port in zip(("HTTP", "GRPC", "METRICS"), ports, strict=True):
        monkeypatch.setenv(f"FOVEA_{kind}_PORT", str(port))
    monkeypatch.setenv("PATH", on_path(tmp_path_factory.mktemp("program")))
    return ports[0]


def test_what_it_says_leads_to_boxes(fovea, tmp_path, own_ports):
    code, said, err = fovea("init", "my shop")
    assert (code, err) == (0, "")
    enter, build, serve, again, detect = commands(said)
    assert enter == again == "cd 'my shop'"
    folder = tmp_path / shlex.split(enter)[1]
    client = folder / "detect.py"
    client.write_text(client.read_text().replace("8000", str(own_ports)))
    subprocess.run(build, cwd=folder, shell=True, check=True, capture_output=True)
    server = subprocess.Popen(shlex.split(serve), cwd=folder, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(own_ports)
        found = subprocess.check_output(detect, cwd=folder, shell=True, text=True)
    finally:
        server.terminate()
        assert server.wait(120) == 0
    assert len(found.splitlines()) > 5
    assert found.splitlines()[0].startswith("digits.jpg: 5 0.9")


def test_its_readme_says_the_same(fovea, tmp_path):
    said = fovea("init")[1]
    in_readme = "".join(BLOCK.findall((tmp_path / "README.md").read_text())).splitlines()
    assert commands(said) == in_readme


def test_nothing_is_overwritten(fovea, tmp_path):
    assert fovea("init", "shop")[0] == 0
    (tmp_path / "shop" / "compose.yaml").write_text("mine")
    (tmp_path / "shop" / "detect.py").unlink()
    code, out, err = fovea("init", "shop")
    assert (code, out) == (2, "")
    assert "shop has README.md, compose.yaml, digits.jpg, models/digits.onnx already" in err
    assert (tmp_path / "shop" / "compose.yaml").read_text() == "mine"
    assert not (tmp_path / "shop" / "detect.py").exists()


def test_a_folder_that_cannot_be_made(fovea, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = fovea("init", "file")
    assert code == 1
    assert err.endswith("cannot be written (Not a directory): give a folder of yours\n")
