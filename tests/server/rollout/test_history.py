"""The record of promotions: whole after a kill, and written by one at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fovea_engines.repository.history import HISTORY_FILE, History
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidModel, InvalidOption, InvalidRequest, NotFound
from fovea_server.cli.main import app
from fovea_server.cli.promote import _seconds
from fovea_server.cli.server_client import parse_share
from fovea_server.models.config.config_check import validate
from fovea_server.rollout.canary import RunningCanary, _tail
from fovea_server.rollout.promotion_documents import CanaryPlan, Promotion, Rollback
from fovea_server.rollout.record import HistoryRecord

# Each promotion that is done is told.
WRITER = """
import itertools, sys
from pathlib import Path
from fovea_engines.repository.repository import ModelRepository
from fovea_server.rollout.promotion_documents import Promotion
from fovea_server.rollout.record import HistoryRecord
models = ModelRepository(Path(sys.argv[1]))
for version in itertools.cycle((1, 2)):
    with HistoryRecord(models, "m") as record:
        if (event := record.event_of(Promotion(version=version))) is not None:
            record.append(event, sys.argv[2], "x" * 900)
            print(version, flush=True)
"""


@pytest.fixture
def models(tmp_path):
    for version in ("1", "2"):
        (tmp_path / "m" / version).mkdir(parents=True)
    return ModelRepository(tmp_path)


def events(models):
    return models.history("m").events


def test_what_was_promoted_outlasts_a_kill_and_writers_do_not_mix(models):
    command = [sys.executable, "-c", WRITER, str(models.root)]
    for most in (3, 20):
        writers = [
            subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True)
            for name in ("anna", "ben")
        ]
        told = dict.fromkeys(("anna", "ben"), 0)
        before = len(events(models))
        for writer, name in zip(writers, told, strict=True):
            for line in writer.stdout:
                told[name] += bool(line)
                if told[name] == most:
                    writer.kill()
                    told[name] += len(writer.stdout.readlines())
                    writer.wait()
                    writer.stdout.close()
                    break
        found = events(models)[before:]
        for name, number in told.items():
            # One more may have been written, and not been told.
            assert number <= sum(each["who"] == name for each in found) <= number + 1
        chain = [each["version"] for each in events(models)]
        assert all(one != other for one, other in pairwise(chain))


def test_after_a_torn_line_the_next_one_takes_its_place(models):
    with HistoryRecord(models, "m") as record:
        record.append(record.event_of(Promotion(version=1)), "anna", "")
    path = models.root / "m" / HISTORY_FILE
    with path.open("ab") as file:
        file.write(b'{"at": "2026-11-27T1')
    assert len(events(models)) == 1
    with HistoryRecord(models, "m") as record:
        record.append(record.event_of(Rollback()), "anna\x1b[31m", "it\nmisses")
    # Terminals obey control characters.
    assert [events(models)[-1][key] for key in ("who", "why")] == ["anna [31m", "it misses"]
    lines = path.read_text().splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["promote", "rollback"]
    assert History.read(path.parent).current == 2


def test_what_is_refused_leaves_no_file_and_what_is_no_file_says_so(models):
    path = models.root / "m" / HISTORY_FILE
    for refused in (Promotion(version=3), Rollback(), Promotion(version=2, canary=0.1)):
        with pytest.raises((NotFound, InvalidRequest)), HistoryRecord(models, "m") as record:
            record.event_of(refused)
        assert not path.exists()
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")):
        make(path)
        with pytest.raises(InvalidModel, match=r"history\.jsonl"):
            HistoryRecord(models, "m")
        with pytest.raises(InvalidModel):
            models.history("m")
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_rare_chance_is_computed_as_it_is():
    assert _tail(20, 0, 0.01) == 1
    assert _tail(1, 1, 0.25) == pytest.approx(0.25)
    # Never less than it is, and not much more.
    assert 11 / 1024 < _tail(10, 9, 0.5) < 0.03
    # Also where all requests fail, of both versions, and of very many.
    assert _tail(5, 5, 1.0) == 1
    assert _tail(10**7, 10**6, 0.0999) < 1


def test_a_good_canary_stays_and_a_slow_one_is_found():
    """Each second of ten minutes is looked at; both versions are slow together for a while."""
    rng = np.random.default_rng(0)
    plan = {"version": 2, "share": 0.05, "seconds": 600, "max_p99": 0.0}
    found = []
    for slowness in (1.0, 2.0):
        canary = RunningCanary(None, {"at": "2026-11-27T12:00:00+00:00", **plan})
        fault = None
        for second in range(120):
            busy = 3 if 20 < second < 50 else 1
            for figures, count, longer in ((canary.own, 10, slowness), (canary.others, 190, 1)):
                took = rng.lognormal(0, 0.5, count) * busy * longer
                figures.answered += count
                figures._took.extend((second, each) for each in took.tolist())
            fault = fault or canary.fault()
        found.append(fault)
    assert found[0] is None
    assert "its p99 is" in found[1]


def test_plans_are_read_as_they_are_written():
    assert [parse_share("--canary", text) for text in ("5%", "+10%", "0.05")] == [0.05, 0.1, 0.05]
    assert [_seconds(text) for text in ("90s", "10m", "2h", "1d")] == [
        90, 600, 7200, 86_400,
    ]  # fmt: skip
    for text in ("", "%", "-5%", "five%"):
        with pytest.raises(InvalidOption):
            parse_share("--canary", text)
    with pytest.raises(InvalidOption):
        _seconds("10")
    for wrong in ({"share": 0.0}, {"share": 0.6}, {"share": True}, {"share": 0.1, "seconds": 0.5}):
        with pytest.raises(InvalidOption):
            validate(CanaryPlan, wrong)


# A history as the command tells it.


@pytest.mark.parametrize("withdrawn", [True, False])
def test_a_rollback_does_not_restore_what_a_canary_rejected(fovea, models, withdrawn) -> None:
    place = "--repository", models.root
    for change in ((2,), (1,), (2, "--canary", "50%")):
        assert fovea("promote", "m", *change, *place)[0] == 0
    if withdrawn:
        with HistoryRecord(models, "m") as record:
            event = {"action": "canary_failed", "version": 2, "previous": 1}
            record.append(event, "fovea", "2 of 3 requests failed")
    else:
        code, out, _ = fovea("rollback", "m", *place)
        assert (code, "The canary ended: version 1 of m stays current." in out) == (0, True)
    before = events(models)
    code, out, err = fovea("rollback", "m", *place)
    assert (code, out) == (1, "")
    ended = "failed" if withdrawn else "was ended"
    assert f"version 2 was current before, but its canary {ended} at " in err
    assert "fovea promote m 2" in err
    assert (events(models), models.served("m")[-1]) == (before, 1)
    assert fovea("promote", "m", 2, *place)[0] == 0
    assert "Version 1 of m is current again" in fovea("rollback", "m", *place)[1]


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
    told = CliRunner().invoke(app, ["versions", "m", "--history", "--repository", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "[/x] [late]" in " ".join(told.output.split())


def test_a_reason_that_is_not_recorded_is_named(fovea, demo_repository, tmp_path: Path) -> None:
    place = "--repository", shutil.copytree(demo_repository, tmp_path / "repository")
    assert fovea("promote", "digits", 1, *place, "--why", "first")[0] == 0
    for why, recorded in (("first", True), ("second", False)):
        code, out, _ = fovea("promote", "digits", 1, *place, "--why", why)
        assert (code, "was not recorded" in out) == (0, not recorded)
