"""`fovea tune` as it is typed: real servers, the demo model."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest
from tests.forked import forked_fovea

from fovea_engines.repository.config_pbtxt import read_config
from fovea_engines.repository.repository import ModelRepository
from fovea_server.cli.promote import write_change
from fovea_server.rollout.promotion_documents import Promotion

pytestmark = pytest.mark.slow

DEMO = Path(__file__).resolve().parents[2] / "server" / "fovea_server" / "demo"
QUICK = ("--clients", "1,4", "--seconds", 0.3)
QUICKER = ("--clients", "1", "--seconds", 0.3)


def tune(*words: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [*forked_fovea(), "tune", *map(str, words)], capture_output=True, text=True, timeout=250
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def versions(demo_versions, tmp_path) -> Path:
    """A repository with an annotated configuration, and two versions; the first is promoted."""
    root = tmp_path / "repository"
    shutil.copytree(demo_versions, root)
    config = root / "digits" / "config.pbtxt"
    config.write_text("# of the night shift\n" + config.read_text())
    write_change(ModelRepository(root), "digits", Promotion(version=1))
    return root


@pytest.fixture
def repository(demo_repository, tmp_path) -> Path:
    return Path(shutil.copytree(demo_repository, tmp_path / "repository"))


def test_the_result_has_every_figure_and_is_served(versions, serve, tmp_path):
    folder, plot = versions / "digits", tmp_path / "frontier.svg"
    code, out, err = tune(
        *("digits", "--repository", versions, "--images", DEMO, *QUICK, "--p99", "5s"),
        *("--plot", plot, "--json"),
    )
    assert code == 0, err
    report = json.loads(out)
    assert list(report) == [
        *("model", "limit_ms", "grid", "best", "now", "within_limit", "busy_runs", "runs"),
        *("candidates", "left_out", "diff", "promoted", "written"),
    ]
    assert (report["model"], report["limit_ms"]) == ("digits", 5000.0)
    known = {each["title"]: each for each in report["candidates"].values()}
    assert known.keys() == {"onnxruntime fp32", "openvino fp32"}
    for each in known.values():
        assert 0.99 < each["agreement"] <= 1
        assert each["accuracy"] is None
    assert {run["setting"]["version"] for run in report["runs"]} == {1, 2}
    for run in report["runs"]:
        assert run["failure"] is None
        assert run["rate"] > 0
        assert run["p99_ms"] > 0
        assert run["taken_cores"] >= 0
    for settled in (report["best"], report["now"]):
        assert settled["p99_ms"] <= 5000
        assert settled["rates"][0] <= settled["rate"] <= settled["rates"][1]
        assert settled["clients"] == report["best"]["clients"]
    ElementTree.fromstring(plot.read_text())
    text = (folder / "config.pbtxt").read_text()
    assert text.startswith("# of the night shift\n")
    for line in report["diff"].splitlines()[2:]:
        assert not line.startswith("+") or line[1:] in text.splitlines()
    version = str(report["best"]["setting"]["version"])
    config = read_config(folder / "config.pbtxt")
    assert report["promoted"] in (None, report["best"]["setting"]["version"])
    assert "version_policy" not in report["diff"]
    server = serve(versions)
    answer = httpx.post(server.predict_url("digits"), content=(DEMO / "scene-1.jpg").read_bytes())
    assert answer.json()["version"] == version
    streams = report["best"]["setting"]["streams"]
    assert config.streams in (None, streams)


def test_a_dry_run_changes_nothing(repository):
    before = (repository / "digits" / "config.pbtxt").read_bytes()
    code, out, err = tune(
        *("digits", "--repository", repository, "--images", DEMO, *QUICKER, "--dry-run", "--json")
    )
    assert code == 0, err
    report = json.loads(out)
    assert not report["written"]
    # The limit is twice the time of a lone image, and at least 100 ms.
    alone = report["runs"][0]
    assert alone["clients"] == 1
    assert report["limit_ms"] == max(100, math.ceil(2 * alone["p99_ms"]))
    assert f"the limit for p99 is {report['limit_ms']:.0f} ms (--p99 sets another limit)" in err
    assert re.search(r"at most \d+ runs in about \d+ minutes?", err)
    assert (repository / "digits" / "config.pbtxt").read_bytes() == before


def test_a_limit_that_nothing_meets_changes_nothing(repository):
    asked = ("digits", "--repository", repository, "--images", DEMO, *QUICKER, "--p99", "0.001ms")
    before = (repository / "digits" / "config.pbtxt").read_bytes()

    code, out, err = tune(*asked)

    assert code == 1
    assert "so nothing changes" in out
    assert "combinations of settings and loads" in out
    [head] = [line.split() for line in out.splitlines() if "p99 ms (range) " in line]
    assert head[-4:] == ["version", "agreement", "cores", "parallel"]
    rows = [line.partition(" fp32 ")[2].split() for line in out.splitlines() if " fp32 " in line]
    assert rows
    assert all(0.99 < float(row[0]) <= 1 for row in rows)
    assert "chosen" not in out
    assert re.search(r"settings?, 1 load: at most \d+ runs in about 1 minute", err)
    assert (repository / "digits" / "config.pbtxt").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("absent", "--images", DEMO), "there is no model 'absent'"),
        (("digits", "--images", DEMO.parent), "has no image"),
        (("digits", "--images", DEMO, "--p99", "soon"), "must be a time"),
        (("digits", "--images", DEMO, "--clients", "0"), "numbers above 0"),
        (("digits", "--images", DEMO, "--plot", "/absent/f.svg"), "cannot be written"),
        (("digits",), "Missing option '--images'"),
    ],
)
def test_what_cannot_be_tuned_is_a_sentence(demo_versions, fovea, words, says):
    code, out, err = fovea("tune", *words, "--repository", demo_versions)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
