"""`make audit`, with a program in the place of pip-audit that answers as pip-audit 2.10 does."""

import json
import os
import sys
from pathlib import Path

import pytest
from tools.audit import audit
from tools.locks import FOLDER

SOUND = {"name": "numpy", "version": "2.4.6", "vulns": []}
OLD = {"name": "h11", "version": "0.14.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.16.0"]}]}
UNKNOWN = {"name": "h11", "skip_reason": "Dependency not found on PyPI"}
UNREACHED = "ConnectionError: Failed to resolve a name"


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let pip-audit answer so for each index; None: it cannot be reached."""

    def set_up(**packages: list[object] | None) -> None:
        program = tmp_path / "pip-audit"
        program.write_text(
            f"#!{sys.executable}\n"
            "import json, sys\n"
            f"packages = json.loads({json.dumps(json.dumps(packages))})\n"
            "found = packages[sys.argv[sys.argv.index('--vulnerability-service') + 1]]\n"
            f"found is None and sys.exit({UNREACHED!r})\n"
            "print(json.dumps({'dependencies': found, 'fixes': []}))\n"
            "sys.exit(any(each.get('vulns') for each in found))\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return set_up


def test_nothing_is_said_to_be_sound_that_was_not_looked_up(answers, capsys):
    answers(pypi=[UNKNOWN], osv=None)
    assert audit([FOLDER / "serve.txt"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(
        "skipped: no index of advisories answers here (pypi answers for none of 1"
    )
    assert UNREACHED in told


@pytest.mark.parametrize("pypi", [[UNKNOWN], None, [SOUND, OLD]])
def test_an_advisory_fails_it_wherever_it_is_found(answers, capsys, pypi):
    answers(pypi=pypi, osv=[SOUND, OLD])
    assert audit([FOLDER / "serve.txt", FOLDER / "rtx.txt"]) == 1
    assert capsys.readouterr().out.count("  h11 0.14.0: PYSEC-1, mended in 0.16.0\n") == 2


def test_none_passes(answers, capsys):
    answers(pypi=[SOUND], osv=None)
    assert audit([FOLDER / "serve.txt"]) == 0
    assert capsys.readouterr().out == "serve.txt: 1 packages looked up at pypi\n"
