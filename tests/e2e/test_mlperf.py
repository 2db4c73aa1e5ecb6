"""`fovea bench --mlperf`: LoadGen runs against real servers and engines, and its logs are right."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from fovea_bench.mlperf.run import read_log

pytestmark = pytest.mark.slow

DEMO = Path(__file__).resolve().parents[2] / "server" / "fovea_server" / "demo"
QUICK = ("--images", DEMO, "--quick", "--seconds", 0.5, "--warmup", 0.2)
# The log has them as mlperf.conf of LoadGen 6.0.17 does.
SEEDS = {
    "effective_qsl_rng_seed": 2085463073848966840,
    "effective_sample_index_rng_seed": 2747215439041700203,
    "effective_schedule_rng_seed": 16159082839903944936,
}


def ran(fovea, scenario: str, *words: object) -> tuple[dict, dict]:
    """The document of a run, and the log of LoadGen."""
    code, out, err = fovea("bench", "digits", "--mlperf", scenario, *QUICK, *words, "--json")
    assert code == 0, err
    report = json.loads(out)
    logs = Path(report["logs"])
    assert "MLPerf Results Summary" in (logs / "mlperf_log_summary.txt").read_text()
    detail = logs / "mlperf_log_detail.txt"
    # The parser of the submission checker takes a file by its first line.
    assert detail.read_text().startswith(':::MLLOG {"key": "loadgen_version"')
    log = dict(read_log(detail))
    assert {key: log[key] for key in SEEDS} == SEEDS
    assert log["effective_scenario"] == report["scenario"] == scenario
    assert log["num_errors"] == 0
    assert log["effective_min_duration_ms"] == 500
    assert report["mlperf"] == "unverified by MLCommons"
    assert report["loadgen"] == version("mlcommons-loadgen")
    assert not report["valid"]
    assert report["failures"] == {}
    assert report["figure"]["value"] > 0
    assert report["cpu_ms"]["load"] > 0
    return report, log


@pytest.mark.parametrize("over", ["http", "grpc", "process"])
def test_a_single_stream_is_a_lone_image_over_each_way(over, demo_repository, fovea):
    report, log = ran(fovea, "SingleStream", "--over", over, "--repository", demo_repository)
    assert report["over"] == over
    assert (report["version"], report["engine"]) == (1, "onnxruntime fp32")
    assert report["logs"] == "mlperf/digits/SingleStream"
    assert report["figure"]["name"] == "p90 of a query, ms"
    assert log["effective_target_latency_percentile"] == 0.9
    assert log["result_query_count"] == report["images"]
    assert (report["cpu_ms"]["server"] is None) == (over == "process")


def test_a_query_of_multi_stream_has_eight_images(demo_server, fovea):
    report, log = ran(fovea, "MultiStream", "--url", demo_server.url)
    assert report["figure"]["name"] == "p99 of a query of 8, ms"
    assert log["effective_samples_per_query"] == 8
    assert log["effective_target_latency_percentile"] == 0.99
    assert report["images"] == 8 * log["result_query_count"]


def test_offline_is_one_query(demo_versions, fovea):
    words = ("--repository", demo_versions, "--version", 1, "--over", "process", "--logs", "here")
    report, log = ran(fovea, "Offline", *words)
    assert report["logs"] == "here"
    assert report["engine"] == "onnxruntime fp32"
    assert report["figure"]["name"] == "images/s"
    assert log["result_query_count"] == 1
    assert log["generated_samples_per_query"] == report["images"]
    assert report["figure"]["value"] == pytest.approx(log["result_samples_per_second"], rel=0.01)


def test_a_server_has_a_rate_and_a_limit(demo_server, fovea):
    words = ("--url", demo_server.url, "--rate", 20, "--p99", "2s")
    report, log = ran(fovea, "Server", *words)
    assert log["effective_target_qps"] == 20
    assert log["effective_target_latency_ns"] == 2_000_000_000
    assert report["latency_ms"].keys() == {"p50", "p90", "p99"}


def test_the_table_says_that_a_quick_run_proves_nothing(demo_server, fovea):
    words = ("--url", demo_server.url, "--mlperf", "SingleStream", *QUICK)
    code, out, err = fovea("bench", "digits", *words)
    assert code == 0, err
    for words in (
        "p90 of a query, ms: ",
        "all queries, ms      p50 ",
        " in LoadGen's process",
        "This is not a valid run. MLPerf's terms, unverified by MLCommons.",
        "--quick: 0.5 s, and a valid run takes 10 minutes",
        f"{len(list(DEMO.glob('*.jpg')))} images: a valid run draws from 64 (--images)",
        "Logs: mlperf/digits/SingleStream",
    ):
        assert words in out


def test_images_that_are_refused_fail_the_run(demo_repository, fovea):
    words = ("--repository", demo_repository, "--mlperf", "MultiStream", *QUICK)
    code, _, err = fovea("bench", "digits", *words, "--", "--max-queue", 1)
    assert code == 1
    assert "an image was not answered: queue_full: " in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("Server", *QUICK), "--rate 20 --p99 100ms"),
        (("Offline", *QUICK, "--rate", 5), "--rate is for --mlperf Server"),
        (("Server", *QUICK, "--rate", "5,9", "--p99", "1s"), "has one rate"),
        (("Server", *QUICK, "--rate", "5", "--p99", "1"), "write a time, e.g. 50ms"),
        (("Offline", "--images", DEMO, "--seconds", 5), "add --quick"),
        (("Offline", *QUICK, "--clients", 4), "give --mlperf or --clients, not both"),
        (("Offline", "--quick"), "--mlperf sends images"),
        (("Offline", *QUICK, "--url", "localhost:1", "--over", "grpc"), "leave --url out"),
        (("Offline", *QUICK, "--over", "process", "--", "--threads", 1), "starts no server"),
        (("Fastest", *QUICK), "Fastest"),
    ],
)
def test_options_that_do_not_fit_are_refused(words, said, fovea):
    code, _, err = fovea("bench", "digits", "--mlperf", *words)
    assert code == 2
    assert said in " ".join(err.split())


def test_without_mlperf_its_options_have_no_effect(fovea):
    code, _, err = fovea("bench", "digits", "--images", DEMO, "--quick")
    assert code == 2
    assert "--quick has no effect without --mlperf" in err


def test_a_missing_loadgen_has_a_remedy(fovea, monkeypatch):
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("fovea_bench.commands.mlperf.version", missing)
    code, _, err = fovea("bench", "digits", "--mlperf", "Offline", *QUICK)
    assert code == 2
    assert "pip install 'mlcommons-loadgen>=6.0,<7'" in err
