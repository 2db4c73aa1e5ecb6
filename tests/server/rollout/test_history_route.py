"""A history as the command tells it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from fovea_server.cli.main import app


def test_brackets_in_a_reason_are_told_as_they_are(tmp_path: Path) -> None:
    """Rich takes "[/x]" for markup, which ends the command, or hides "[late]"."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"")
    event: dict[str, object] = {
        "at": "2026-11-28T01:00:00+00:00",
        "who": "anna",
        "action": "promote",
    }
    event |= {"version": 1, "previous": 1, "why": "[/x] [late]"}
    (tmp_path / "m" / "history.jsonl").write_text(json.dumps(event) + "\n")
    told = CliRunner().invoke(app, ["history", "m", "--repository", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "[/x] [late]" in " ".join(told.output.split())
