"""benchmarks/mlperf.py, short runs: LoadGen runs against real servers and engines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "mlperf.py"
DEMO = ROOT / "server" / "fovea_server" / "demo"
# Scenario -> fields of LoadGen's log.
STREAMS = {
    "SingleStream": {"effective_target_latency_percentile": 0.9},
    "MultiStream": {
        "effective_samples_per_query": 8,
        "effective_target_latency_percentile": 0.99,
    },
    "Offline": {"result_query_count": 1},
}
SERVER = {"Server": {"effective_target_qps": 20, "effective_target_latency_ns": 2_000_000_000}}
# As mlperf.conf of LoadGen 6.0.17 has them.
SEEDS = {
    "effective_qsl_rng_seed": 2085463073848966840,
    "effective_sample_index_rng_seed": 2747215439041700203,
    "effective_schedule_rng_seed": 16159082839903944936,
}


def run(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, "digits", "--images", DEMO, "--quick", 0.5, *words]
    return subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("loads", "words"),
    [
        (STREAMS, ()),
        (SERVER, ("--scenario", "Server", "--rate", 20, "--p99-ms", 2000, "--in-process")),
    ],
)
def test_scenarios_have_figures_and_logs(loads, words, demo_repository, tmp_path):
    done = run(tmp_path, "--repository", demo_repository, "--json", "report.json", *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert ("| digits | " in done.stdout) == (loads is STREAMS)
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]["digits"]
    assert list(runs) == list(loads)
    for scenario, expected in loads.items():
        detail = tmp_path / "mlperf" / "digits" / scenario / "mlperf_log_detail.txt"
        lines = [line.removeprefix(":::MLLOG") for line in detail.read_text().splitlines()]
        log = {each["key"]: each["value"] for each in map(json.loads, reversed(lines))}
        expected = {**SEEDS, **expected, "effective_scenario": scenario, "num_errors": 0}
        assert {key: log[key] for key in expected} == expected
        found = runs[scenario]
        assert found["engine"] == "onnxruntime fp32"
        assert found["figure"]["value"] > 0
        assert found["images"] == log["result_query_count"] * log["generated_samples_per_query"]
        assert found["cpu_ms"]["load"] > 0
        assert (found["cpu_ms"]["server"] > 0) == (found["over"] == "http")
        quick, few, *_ = found["faults"]
        assert quick.startswith("--quick")
        assert few.startswith(f"{len(list(DEMO.glob('*.jpg')))} images")


def test_a_model_that_is_not_there_is_named(demo_repository, tmp_path):
    done = run(tmp_path, "--repository", tmp_path)
    assert done.returncode == 1
    assert "digits" in done.stderr
    assert "Traceback" not in done.stderr
