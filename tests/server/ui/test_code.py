"""The code that the page offers runs as it is copied, and finds what the page shows."""

import re
import shutil
import subprocess
import sys

import httpx
import pytest
from tests.system import program

from .conftest import DEMO, answered, listed, says

pytestmark = pytest.mark.browser


@pytest.fixture
def copied(drawn, tmp_path):
    """Copy the code in a language, in a folder with the image; gives the code."""
    drawn.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shutil.copy(DEMO / "scene-1.jpg", tmp_path)
    everything = len(listed(drawn))
    drawn.locator(".chip").first.click()
    drawn.locator(".chip").nth(1).click()
    chosen = listed(drawn)
    between = (float(chosen[0][1]) + float(chosen[-1][1])) / 2
    drawn.locator("#conf").fill(f"{between:.2f}")
    # Both the classes and the confidence leave something out.
    assert 0 < len(listed(drawn)) < len(chosen) < everything

    def copy(language: str) -> str:
        drawn.get_by_label(language).check(force=True)
        drawn.click("#copy")
        says(drawn, "#copy", "^Copied$")
        return drawn.evaluate("navigator.clipboard.readText()")

    return copy


def run(command, folder) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl(copied, drawn, tmp_path):
    program("curl", package="curl")
    code = copied("curl")
    assert re.search(r"predict\?conf=0\.\d+&classes=", code)
    found = run(["sh", "-c", code], tmp_path)
    scores = re.findall(r'"score":([\d.]+),"class_id":\d+,"class_name":"(\w+)"', found)
    assert [(name, f"{float(score):.2f}") for score, name in scores] == listed(drawn)


def test_python(copied, drawn, tmp_path):
    code = copied("Python")
    # Its first line says how to get the client.
    client = httpx.head(re.search(r"pip install (\S+)", code)[1])
    assert (client.status_code, client.headers["content-type"]) == (200, "application/zip")
    found = run([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert [tuple(line.split()[:2]) for line in found.splitlines()] == listed(drawn)


def test_javascript(copied, drawn, tmp_path):
    node = program("node", package="nodejs")
    program("curl", package="curl")
    code = copied("JavaScript")
    # Its first line says how to get the client.
    run(["sh", "-c", re.search(r"curl -O \S+", code)[0]], tmp_path)
    (tmp_path / "found.mjs").write_text(code)
    found = run([node, "found.mjs"], tmp_path)
    assert re.findall(r"^(\w+) (\d\.\d\d) ", found, re.MULTILINE) == listed(drawn)


def test_a_version_and_odd_names(page, tmp_path):
    file = tmp_path / "it's \"5\" o'clock.jpg"
    shutil.copy(DEMO / "scene-1.jpg", file)
    page.get_by_label("Model", exact=True).select_option("digits, version 1")
    page.set_input_files("#files", file)
    says(page, "#code", "digits/versions/1/predict")
    answered(page)
    expected = len(listed(page))
    found = run(["sh", "-c", page.inner_text("#code")], tmp_path)
    assert found.count('"class_id"') == expected
    page.get_by_label("Python").check(force=True)
    found = run([sys.executable, "-c", page.inner_text("#code")], tmp_path)
    assert len(found.splitlines()) == expected
