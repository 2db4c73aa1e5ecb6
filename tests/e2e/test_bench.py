"""`fovea bench` as it is typed, on servers with the demo model."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import httpx
import psutil
import pytest
from tests.conftest import DEMO
from tests.forked import forked_fovea

pytestmark = pytest.mark.slow

IMAGES = len(list(DEMO.glob("*.jpg")))
FOVEA = [sys.executable, "-m", "fovea_server.cli.main"]
QUICK = ("--warmup", 0.2, "--seconds", 0.6)


def started(*words: object, program: Sequence[str] = FOVEA) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*program, "bench", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def bench(*words: object) -> tuple[int, str, str]:
    process = started(*words, program=forked_fovea())
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def measured(*words: object) -> dict:
    code, out, err = bench(*words, "--json")
    assert code == 0, err
    return json.loads(out)


def served(url: str) -> int:
    [version] = httpx.get(f"{url}/v2/models/digits/stats").json()["model_stats"]
    return version["inference_stats"]["success"]["count"]


@pytest.fixture(scope="module")
def labels(demo_truth, tmp_path_factory) -> Path:
    """The digits of the demo scenes as a COCO file."""
    document = {"images": [], "annotations": []}
    document["categories"] = [{"id": digit, "name": str(digit)} for digit in range(10)]
    for number, (name, digits) in enumerate(demo_truth.items()):
        document["images"].append({"id": number, "file_name": name, "width": 640, "height": 480})
        for digit in digits:
            x1, y1, x2, y2 = digit["box"]
            box = [x1, y1, x2 - x1, y2 - y1]
            known = {"image_id": number, "category_id": int(digit["class_name"]), "bbox": box}
            document["annotations"].append(known)
    path = tmp_path_factory.mktemp("labels") / "scenes.json"
    path.write_text(json.dumps(document))
    return path


def test_levels_of_both_loops_have_every_figure(demo_server, tmp_path):
    plot = tmp_path / "latency.svg"
    loads = ("--clients", "1,3", "--rate", 20, *QUICK)
    words = ("digits", "--url", demo_server.url, "--images", DEMO, *loads, "--plot", plot)
    report = measured(*words)
    assert list(report) == [
        *("model", "version", "engine", "url", "kind", "bodies", "split", "levels", "interrupted")
    ]
    assert (report["kind"], report["bodies"], report["interrupted"]) == ("images", IMAGES, False)
    assert report["version"] == 1
    assert report["engine"] == "onnxruntime fp32"
    assert [level["load"] for level in report["levels"]] == [
        {"kind": "ClosedLoop", "clients": 1},
        {"kind": "ClosedLoop", "clients": 3},
        {"kind": "OpenLoop", "rate": 20.0},
    ]
    for level in report["levels"]:
        assert list(level) == [
            *("load", "seconds", "answers", "rate", "latency_ms", "errors", "stages_ms", "batch"),
            *("server_cpu", "generator_cpu", "late_p99_ms", "accuracy", "accuracy_missing"),
            "complete",
        ]
        latency = level["latency_ms"]
        assert list(latency) == ["mean", "p50", "p95", "p99", "max"]
        # A percentile that would be the slowest answer is left out.
        for name, least in (("p50", 2), ("p95", 20), ("p99", 100)):
            assert (latency[name] is None) == (level["answers"] < least)
        told = [ms for name, ms in latency.items() if name != "mean" and ms is not None]
        assert min(told) > 0
        assert told == sorted(told)
        stages = level["stages_ms"]
        assert stages.keys() == {
            *("decode", "letterbox", "queue", "infer", "postprocess", "outside")
        }
        assert sum(stages.values()) == pytest.approx(latency["mean"], rel=0.01)
        assert level["errors"] == []
        assert level["complete"]
    assert 3 <= report["levels"][2]["answers"] <= 30
    drawing = ElementTree.fromstring(plot.read_text())
    lines = drawing.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(report["levels"])


def test_the_table_names_levels_and_figures(demo_server):
    code, out, err = bench("digits", "--url", demo_server.url, "--images", DEMO, *QUICK)
    assert code == 0, err
    for word in ("1 client ", "4 clients", "16 clients", "images/s", "p99 ms", "letterbox"):
        assert word in out
    assert "16 clients: " in err


def test_a_stall_shows_in_open_loop_only(demo_repository, serve):
    """A lone client in closed loop sends nothing meanwhile, so one answer is late, not many."""
    server = serve(demo_repository)
    late = {}
    for load in (("--clients", 1), ("--rate", 20)):
        before = served(server.url)
        words = ("digits", "--url", server.url, "--images", DEMO, "--warmup", 0, "--seconds", 3)
        process = started(*words, *load, "--json")
        while served(server.url) < before + 3:
            time.sleep(0.01)
        # Most of the time, as few answers have a p50 alone: a busy machine may give no more.
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        server.process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        [level] = json.loads(out)["levels"]
        assert level["latency_ms"]["max"] > 1000
        late[load[0]] = level["latency_ms"]["p50"]
    assert late["--rate"] > 500
    assert late["--clients"] < late["--rate"]


def test_refused_requests_are_counted_and_clients_wait_as_long_as_they_are_asked(
    demo_repository, serve
):
    """Retry-After is a second or more, so a refused client sends that seldom."""
    server = serve(demo_repository, "--max-queue=1")
    loads = ("--clients", 16, "--warmup", 0, "--seconds", 2)
    report = measured("digits", "--url", server.url, "--images", DEMO, *loads)
    [level] = report["levels"]
    [error] = level["errors"]
    assert (error["status"], error["code"]) == (429, "queue_full")
    assert 0 < error["count"] <= 16 * 2
    assert "--max-queue" in error["message"]
    assert level["answers"] > 0


def test_answers_that_do_not_come_are_counted(demo_repository, serve):
    server = serve(demo_repository)
    process = started(
        *("digits", "--url", server.url, "--images", DEMO, "--clients", 2, "--timeout", 0.5),
        *("--warmup", 0, "--seconds", 2, "--json"),
    )
    while served(server.url) < 5:
        time.sleep(0.01)
    server.process.kill()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    [level] = json.loads(out)["levels"]
    assert level["answers"] > 0
    assert {error["status"] for error in level["errors"]} == {None}


def test_accuracy_under_load_is_that_of_eval(demo_server, labels):
    words = ("digits", "--url", demo_server.url, "--data", labels, "--images", DEMO)
    report = measured(*words, "--clients", 2, "--rate", 10, *QUICK)
    assert report["split"] is None
    done = subprocess.run(
        [*forked_fovea(), "eval", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = json.loads(done.stdout)
    for level in report["levels"]:
        assert level["accuracy"]["map50_95"] == pytest.approx(expected["map50_95"], abs=1e-3)
        assert level["accuracy"]["images"] == len(json.loads(labels.read_text())["images"])
        assert level["accuracy_missing"] == 0


def test_a_server_is_started_and_stopped_with_its_flags(demo_repository):
    code, out, err = bench(
        *("digits", "--repository", demo_repository, "--tensors", "--clients", 2),
        *(*QUICK, "--json", "--", "--threads", 1),
    )
    assert code == 0, err
    report = json.loads(out)
    [level] = report["levels"]
    assert report["kind"] == "requests"
    assert level["stages_ms"].keys() == {"queue", "input", "infer", "output", "outside"}
    assert level["server_cpu"] > 0
    assert not servers_of(demo_repository, report["url"])


def test_a_version_that_is_not_served_is_served_for_the_measurement(demo_versions):
    before = (demo_versions / "digits" / "config.pbtxt").read_text()
    load = ("--images", DEMO, "--clients", 1, *QUICK)
    for version, engine in ((1, "onnxruntime fp32"), (2, "openvino fp32")):
        report = measured("digits", "--repository", demo_versions, "--version", version, *load)
        assert (report["version"], report["engine"]) == (version, engine)
    assert (demo_versions / "digits" / "config.pbtxt").read_text() == before


def test_a_version_of_a_server_is_named_by_its_own_engine(demo_versions, serve):
    server = serve(demo_versions)
    httpx.post(f"{server.url}/v1/models/digits/versions/1/load").raise_for_status()
    load = ("--images", DEMO, "--clients", 1, *QUICK)
    report = measured("digits", "--url", server.url, "--version", 1, *load)
    assert (report["version"], report["engine"]) == (1, "onnxruntime fp32")


def servers_of(repository: Path, port: str) -> list[psutil.Process]:
    flag = f"--http-port={port.rpartition(':')[2]}"
    return [p for p in psutil.process_iter(["cmdline"]) if flag in (p.info["cmdline"] or ())]


def test_ctrl_c_shows_what_was_measured(demo_repository):
    process = started(
        *("digits", "--repository", demo_repository, "--images", DEMO, "--rate", "10,20"),
        *("--warmup", 0, "--seconds", 8, "--json"),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("10/s: "):
            break
    words = [word for child in psutil.Process(process.pid).children() for word in child.cmdline()]
    [port] = (word for word in words if word.startswith("--http-port="))
    url = f"http://127.0.0.1:{port.partition('=')[2]}"
    before = served(url)
    while served(url) < before + 6:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    report = json.loads(out)
    assert report["interrupted"]
    whole, part = report["levels"]
    assert (whole["complete"], part["complete"]) == (True, False)
    assert 0 <= part["seconds"] < 8
    assert not servers_of(demo_repository, report["url"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("digits", "--url", "http://127.0.0.1:1", "--images", DEMO), 1, "127.0.0.1:1"),
        (("digits", "--url", "gopher://x", "--images", DEMO), 2, "gopher://x"),
        (("digits", "--url", "URL"), 2, "--images"),
        (("digits", "--url", "URL", "--images", DEMO.parent), 2, "no image"),
        (("absent", "--url", "URL", "--images", DEMO), 2, "'absent'"),
        (("absent", "--url", "URL", "--tensors"), 2, "'absent'"),
        (("digits", "--url", "URL", "--tensors", "--shape", "x:1"), 2, "digits"),
        (("digits", "--url", "URL", "--tensors", "--shape", "x"), 2, "NAME:DIMS"),
        (
            ("digits", "--url", "URL", "--tensors", "--shape", "images:1,3,5,5"),
            *(2, "images"),
        ),
        (("digits", "--url", "URL", "--images", DEMO, "--clients", "1,x"), 2, "'1,x'"),
        (("digits", "--url", "URL", "--images", DEMO, "--plot", "/no/f.svg"), 2, "/no/f.svg"),
        (("digits", "--url", "URL", "--images", DEMO, "--", "--threads=1"), 2, "--url"),
        (("digits", "--url", "URL", "--images", DEMO, "--plot", "f.png"), 2, ".svg"),
        (
            ("digits", "--repository", "REPO", "--images", DEMO, "--", "--thread", 2),
            *(2, "--threads?"),
        ),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(
    demo_server, demo_repository, fovea, words, code, says
):
    known = {"URL": demo_server.url, "REPO": demo_repository}
    have, out, err = fovea("bench", *(known.get(word, word) for word in words))
    assert (have, out) == (code, "")
    assert says in err
    assert "Traceback" not in err
