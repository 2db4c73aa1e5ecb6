"""What README and docs say is true: their blocks are run, their commands and links exist."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import httpx
import pytest
import typer
from tests.serving import free_ports
from tests.system import program

from fovea_server.commands.cli import app
from fovea_server.commands.flags import GROUPS, OTHER_NAMES, WITHOUT_EFFECT, flag
from fovea_server.settings import Settings

# Of each set, for builds that are shown: enough to run, not to judge.
IMAGES = 8

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
# Their blocks share one server, which the README starts.
SERVED = ("README.md", "docs/http.md", "docs/triton.md")
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))


def blocks(page: str) -> list[tuple[str, str]]:
    text = (ROOT / page).read_text()
    return re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(shared, tmp_path, monkeypatch):
    """A folder with a model and an image, `fovea` on the path, and ports for those that are named.

    Returns:
        The folder; and 8000, 8001 and 8002 -> a free port.
    """
    shutil.copy(shared / "models" / "yolov8n.onnx", tmp_path)
    shutil.copy(shared / "models" / "yolov8n.onnx", tmp_path / "ported.onnx")
    shutil.copy(shared / "data" / "bus.jpg", tmp_path)
    coco = shared / "data" / "coco64"
    labels = json.loads((coco / "val.json").read_text())
    labels["images"] = sorted(labels["images"], key=lambda image: image["file_name"])[:IMAGES]
    ids = {image["id"] for image in labels["images"]}
    labels["annotations"] = [a for a in labels["annotations"] if a["image_id"] in ids]
    (tmp_path / "val.json").write_text(json.dumps(labels))
    for folder, source in (("val", "val"), ("images", "calibration")):
        (tmp_path / folder).mkdir()
        for image in sorted((coco / source).glob("*.jpg"))[:IMAGES]:
            (tmp_path / folder / image.name).symlink_to(image)
    ports = dict(zip((8000, 8001, 8002), free_ports(3), strict=True))
    monkeypatch.chdir(tmp_path)
    for kind, port in zip(("HTTP", "GRPC", "METRICS"), ports.values(), strict=True):
        monkeypatch.setenv(f"FOVEA_{kind}_PORT", str(port))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path, ports


def wait_until_ready(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail("the server did not become ready")


@pytest.mark.timeout(900)  # builds INT8 engines, which takes minutes on a slow CPU
def test_every_block_with_a_server_runs(workplace):
    folder, ports = workplace
    program("curl", package="curl")
    servers = []
    try:
        for kind, block in chain.from_iterable(map(blocks, SERVED)):
            text = re.sub(r"(?<=:)800\d", lambda named: str(ports[int(named[0])]), block)
            if kind == "python":
                output = subprocess.check_output([sys.executable, "-c", text], text=True)
                assert output.count("person") >= 3
                continue
            for line in re.sub(r"\|\n\s+", "| ", text).splitlines():
                if line == "fovea serve":
                    servers.append(subprocess.Popen(line.split()))
                    wait_until_ready(ports[8000])
                elif not line.startswith("docker "):  # tests/docker has those
                    output = subprocess.check_output(line, shell=True, text=True)
                    assert "predict" not in line or "person" in output or "boxes.jpg" in line
        assert (folder / "boxes.jpg").read_bytes()[:2] == b"\xff\xd8"
        assert servers, "the README starts a server"
    finally:
        for server in servers:
            server.terminate()
            assert server.wait(30) == 0


@pytest.mark.timeout(900)
def test_every_block_of_the_docs_runs(workplace):
    for page in set(PAGES) - {*SERVED, "CONTRIBUTING.md"}:
        for _, block in blocks(page):
            for line in block.splitlines():
                subprocess.run(line, shell=True, check=True, stdout=subprocess.PIPE)


def test_the_table_of_commands_is_complete():
    listed = set(re.findall(r"^\| `fovea (\w+)", README, re.MULTILINE))
    assert listed == set(typer.main.get_command(app).list_commands(None))


def test_the_table_of_flags_is_complete():
    page = (ROOT / "docs" / "triton.md").read_text()
    section = page.split("## Flags of fovea serve")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w ,]+) \| (`--.*) \|$", section, re.MULTILINE)
    assert [title for title, _ in rows] == list(GROUPS)
    listed = [name for _, flags in rows for name in re.findall(r"`(--[\w-]+)`", flags)]
    assert sorted(listed) == sorted(
        [*map(flag, Settings.model_fields), *chain(*OTHER_NAMES.values())]
    )
    beside = set(re.findall(r"`(--[\w-]+)`", section)) - set(listed)
    assert beside <= {*map(flag, WITHOUT_EFFECT), "--flag"}


def test_make_targets_exist():
    targets = re.findall(r"^    make (\w+)", README, re.MULTILINE)
    assert targets == ["run", "test"]
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_the_packages_for_a_full_run_are_listed():
    named = set()
    for file in ROOT.glob("tests/**/*.py"):
        named |= set(re.findall(r'\bprogram\([^)]*package="([\w.+-]+)"', file.read_text()))
        named |= set(re.findall(r'\bskip_for_want_of\("([\w.+-]+)"', file.read_text()))
    [listed] = re.findall(r"`apt-get install ([^`]+)` for a full run", README)
    assert listed.split() == sorted(named)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        file = (ROOT / page).parent / path
        assert file.exists(), link
        titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if heading else [""]
        assert heading in [title.lower().replace(" ", "-") for title in titles], link


def test_files_named_in_the_text_exist():
    for page in PAGES:
        for path in re.findall(r"`((?:\w+/)+[\w.]+\.\w+)`", (ROOT / page).read_text()):
            tops = (ROOT, ROOT / "server/fovea_server", ROOT / "engines/fovea_engines")
            # In lists of files the package is left out.
            package, _, rest = path.partition("/")
            places = [*(top / path for top in tops), ROOT / package / f"fovea_{package}" / rest]
            assert any(place.exists() for place in places), f"{page}: {path}"
