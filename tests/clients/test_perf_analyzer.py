"""NVIDIA's perf_analyzer drives the server in every way that it knows for tensors."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system import skip_for_want_of

pytestmark = pytest.mark.real

CLIENTS = Path(sys.prefix) / "clients"
PROGRAM = CLIENTS / "bin" / "perf_analyzer"
# Short windows, and any spread between them will do: this is no benchmark.
SHORTLY = ("--measurement-interval", "150", "--stability-percentage", "999")


@pytest.fixture(scope="session")
def program() -> list[str]:
    """The command, with the libraries that it is linked with."""
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
    """Run it against a model; returns its table, a row for each load."""

    def run(model: str, *flags: str) -> list[dict[str, str]]:
        table = tmp_path / "table.csv"
        port = server.grpc_port if "grpc" in flags else server.port
        where = ["-m", model, "-u", f"127.0.0.1:{port}", "-f", str(table)]
        # It leaves nothing behind in the folder it runs in.
        done = subprocess.run(
            [*program, *where, *SHORTLY, *flags], cwd=tmp_path, capture_output=True, text=True
        )
        told = done.stdout + done.stderr
        assert done.returncode == 0, told
        assert "error" not in told.lower(), told
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


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_rate_of_requests(analyse, protocol):
    [row] = analyse("simple", "-i", protocol, "--request-rate-range", "200")
    assert float(row["Request Rate"]) == 200


@pytest.mark.parametrize("flags", [["-a"], ["-a", "-i", "grpc"], ["-i", "grpc", "--streaming"]])
def test_asynchronously_and_in_a_stream(analyse, flags):
    assert len(analyse("simple", "--concurrency-range", "4", *flags)) == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_strings(analyse, protocol):
    assert analyse("simple_string", "-i", protocol, "--string-data", "3")
    assert analyse("identity_bytes", "-i", protocol, "--shape", "INPUT0:1,4")


def test_json_tensors(analyse):
    flags = ["--input-tensor-format", "json", "--output-tensor-format", "json"]
    assert analyse("simple", *flags)


def test_batches_and_compression(analyse):
    assert analyse("simple", "-b", "8", "-i", "grpc", "--grpc-compression-algorithm", "gzip")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_models_of_an_ensemble_are_looked_at_too(analyse, protocol):
    assert analyse("simple_ensemble", "-i", protocol)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_sequences(analyse, protocol):
    assert analyse("simple_sequence", "-i", protocol, "--sequence-length", "5")


def test_the_servers_own_times_are_in_the_table(analyse):
    [row] = analyse("simple", "--concurrency-range", "2")
    assert float(row["Server Compute Infer"]) >= 0
    queue, infer = float(row["Server Queue"]), float(row["Server Compute Infer"])
    assert queue + infer < float(row["p99 latency"])


def test_metrics_are_collected(analyse, server):
    url = f"127.0.0.1:{server.metrics_port}/metrics"
    flags = ["--verbose-csv", "--collect-metrics", "--metrics-url", url]
    assert analyse("simple", *flags, "--metrics-interval", "50")
