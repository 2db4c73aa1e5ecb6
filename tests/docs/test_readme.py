"""What README and docs say is true: their blocks are run, their commands and links exist."""

import re
import subprocess
import sys
from contextlib import ExitStack
from itertools import chain

import pytest
from tests.docs.pages import ROOT, blocks, ported, served
from tests.system import program

pytestmark = [pytest.mark.real, pytest.mark.slow]

README = (ROOT / "README.md").read_text()
# Their blocks share one server, which the README starts.
SERVED = ("README.md", "docs/reference/http.md", "docs/reference/triton.md")
# These have tests of their own: test_recipes.py, test_streams_page.py, test_tutorials.py.
TESTED_ELSEWHERE = (
    "docs/how-to/recipes.md",
    "docs/how-to/streams.md",
    "docs/tutorials/first-model.md",
    "docs/tutorials/make-it-fast.md",
)
PAGES = ("README.md", *(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")))
LINKED = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "client" / "README.md"})


def blocks_of(page: str) -> list[tuple[str, str]]:
    return blocks((ROOT / page).read_text())


@pytest.mark.smoke
@pytest.mark.timeout(900)  # builds INT8 engines, which takes minutes on a slow CPU
def test_every_block_with_a_server_runs(workplace):
    folder, ports = workplace
    program("curl", package="curl")
    with ExitStack() as servers:
        for kind, block in chain.from_iterable(map(blocks_of, SERVED)):
            text = ported(block, ports)
            if kind == "python":
                output = subprocess.check_output([sys.executable, "-c", text], text=True)
                assert output.count("person") >= 3
                continue
            for line in re.sub(r"\|\n\s+", "| ", text).splitlines():
                if line == "fovea serve":
                    servers.enter_context(served(line, ports[8000]))
                elif not line.startswith("docker "):  # tests/docker has those
                    output = subprocess.check_output(line, shell=True, text=True)
                    assert "predict" not in line or "person" in output or "boxes.jpg" in line
                    assert "build" not in line or re.search(r"precision +│ (fp32|int8)", output)
                    assert "int8" not in line or re.search(r"precision +│ int8", output)
        assert (folder / "boxes.jpg").read_bytes()[:2] == b"\xff\xd8"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", sorted({*PAGES} - {*SERVED, *TESTED_ELSEWHERE}))
def test_every_block_of_a_page_runs(workplace, page):
    for kind, block in blocks_of(page):
        if kind == "python":
            subprocess.run([sys.executable, "-c", block], check=True, stdout=subprocess.PIPE)
            continue
        for line in block.splitlines():
            subprocess.run(line, shell=True, check=True, stdout=subprocess.PIPE)


def test_make_targets_exist():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["run", "test"]
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        # Without a path it leads to a heading of the same page.
        file = page.parent / path if path else page
        assert file.exists(), link
        titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if heading else [""]
        assert heading in [title.lower().replace(" ", "-") for title in titles], link
