"""NVIDIA's perf_analyzer loads the server in all its ways."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system import skip_for_want_of

pytestmark = pytest.mark.real

CLIENTS = Path(sys.prefix) / "clients"
PROGRAM = CLIENTS / "bin" / "perf_analyzer"
# Short windows that may differ: this is no benchmark.
SHORTLY = ("--measurement-interval", "150", "--stability-percentage", "999")


@pytest.fixture(scope="session")
def program() -> list[str]:
    """The command, with the folder of its libraries."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is absent: `make test-real` installs it where there is a wheel")
    command = ["env", f"LD_LIBRARY_PATH={CLIENTS}/nvidia/cuda_runtime/lib", str(PROGRAM)]
    try:
        started = subprocess.run([*command, "--version"], capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"perf_analyzer does not run on this machine: {error}")
    if started.returncode == 127:
        skip_for_want_of("libb64-0d", f"perf_analyzer lacks a library ({started.stderr.strip()})")
    return command


@pytest.fixture
def analyse(program, server, tmp_path):
    """Run it with a model; return a row for each load."""

    def run(model: str, *flags: str) -> list[dict[str, str]]:
        table = tmp_path / "table.csv"
        port = server.grpc_port if "grpc" in flags else server.port
        where = ["-m", model, "-u", f"127.0.0.1:{port}", "-f", str(table)]
        done = subprocess.run(
            [*program, *where, *SHORTLY, *flags], cwd=tmp_path, capture_output=True, text=True
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        assert "error" not in output.lower(), output
        with table.open() as stream:
            rows = list(csv.DictReader(stream))
        assert all(float(row["Inferences/Second"]) > 0 for row in rows)
        return rows

    return run


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("memory", ["none", "system"])
def test_concurrency(analyse, protocol, memory):
    flags = ["-i", protocol, "--shared-memory", memory]
    rows = analyse("simple", *flags, "--concurrency-range", "1:16:5")
    assert {row["Concurrency"] for row in rows} == {"1", "6", "11", "16"}


@pytest.mark.parametrize(
    ("model", "flags", "protocols"),
    [
        ("simple", "--request-rate-range 200", ("http", "grpc")),
        ("simple", "--concurrency-range 4 -a", ("http", "grpc")),
        ("simple", "--concurrency-range 4 --streaming", ("grpc",)),
        ("simple", "-b 8 --grpc-compression-algorithm gzip", ("grpc",)),
        ("simple", "--input-tensor-format json --output-tensor-format json", ("http",)),
        ("simple_string", "--string-data 3", ("http", "grpc")),
        ("identity_bytes", "--shape INPUT0:1,4", ("http", "grpc")),
        ("simple_ensemble", "", ("http", "grpc")),
        ("simple_sequence", "--sequence-length 5", ("http", "grpc")),
    ],
)
def test_models_and_loads(analyse, model, flags, protocols):
    for protocol in protocols:
        assert len(analyse(model, "-i", protocol, *flags.split())) == 1


def test_the_servers_durations_and_metrics(analyse, server):
    url = f"127.0.0.1:{server.metrics_port}/metrics"
    collected = ["--verbose-csv", "--collect-metrics", "--metrics-url", url]
    [row] = analyse("simple", "--concurrency-range", "2", *collected, "--metrics-interval", "50")
    queue, infer = float(row["Server Queue"]), float(row["Server Compute Infer"])
    assert infer >= 0
    assert queue + infer < float(row["p99 latency"])
