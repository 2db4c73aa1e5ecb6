"""docs/tutorials: the commands of two pages work as written, in the order of the page."""

import re

import pytest
from tests.docs.pages import ROOT, run_blocks
from tests.system import program

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]

TUTORIALS = ROOT / "docs" / "tutorials"


def test_first_model(workplace):
    program("curl", package="curl")
    folder, ports = workplace
    output = run_blocks((TUTORIALS / "first-model.md").read_text(), ports)
    assert output.count('"class_name":"person"') >= 3
    assert (folder / "boxes.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_make_it_fast(workplace):
    folder, ports = workplace
    output = run_blocks((TUTORIALS / "make-it-fast.md").read_text(), ports)
    built = re.findall(r"^yolov8n version (\d+), current", output, re.MULTILINE)
    assert len(built) == 3
    assert (folder / "repository" / "yolov8n" / built[-1] / "card.json").exists()
    assert output.count("cores used") == 2
    assert "images/s" in output.split("yolov8n: settings that no other beats")[1]
