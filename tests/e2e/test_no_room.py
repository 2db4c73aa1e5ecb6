"""A machine without room: descriptors, disks, threads, a repository that is gone for a while; and
numbers in a configuration that would take more than there is.
"""

import base64
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.forked import PROGRAM
from tests.server.registries import ADDER_CONFIG, adder, chain, wait_until
from tests.serving import RunningServer, start_server

pytestmark = pytest.mark.slow

FOVEA = (sys.executable, "-m", "fovea_server.cli.main")
INPUT = {"name": "X", "datatype": "INT32", "shape": [1, 4], "data": [0] * 4}


@pytest.fixture
def repository(tmp_path) -> Path:
    adder(tmp_path / "repository", "adder", config=ADDER_CONFIG)
    return tmp_path / "repository"


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 64 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def descriptors(limit: int) -> Iterator[None]:
    """What starts meanwhile may have so many files open: no fork, whose parent may be older."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def logged(server: RunningServer, text: str, count: int = 1) -> None:
    """Wait until the log has a text so often: it is written now and then."""
    wait_until(lambda: server.log.read_text().count(text) >= count)
    assert server.log.read_text().count(text) == count


def ask(url: str, count: int = 1) -> None:
    with httpx.Client() as client:
        for _ in range(count):
            answer = client.post(f"{url}/v2/models/adder/infer", json={"inputs": [INPUT]})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("limit", [20, 40, 63])
def test_too_few_descriptors_for_a_start_are_named(demo_repository, limit):
    done = subprocess.run(
        [*FOVEA, "serve", demo_repository, "--http-port=0", "--grpc-port=0", "--metrics-port=0"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )
    assert done.returncode == 1
    assert (
        f"error: the limit of open files is {limit}, but a server needs at least 64" in done.stderr
    )
    assert "`ulimit -n`" in done.stderr
    assert len(done.stderr.splitlines()) == 2  # behind the version in the log


def test_the_fewest_descriptors_that_are_said_suffice(repository, serve):
    with descriptors(64):
        server = serve(repository, program=PROGRAM)
    ask(server.url)


def test_requests_that_are_answered_make_room_though_their_bodies_never_end(repository, serve):
    with descriptors(100):
        server = serve(repository, program=PROGRAM)
    head = b"POST /v2/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    for port, path in ((server.port, "/v2/health/live"), (server.metrics_port, "/metrics")):
        with ExitStack() as stack:
            # More than either port may have.
            for _ in range(60):
                line = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                line.sendall(head)
                assert line.recv(12).startswith(b"HTTP/1.1 40")
            assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200


def test_descriptors_that_run_out_are_logged_once_and_come_back(repository, serve):
    server = serve(repository)
    ask(server.url)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (80, 80))
    out = "no file descriptor is free (Too many open files; the limit is 80)"
    with ExitStack() as stack:
        for _ in range(100):
            with suppress(ConnectionError):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        logged(server, out)
        # A server that is full stays alive.
        assert server.process.poll() is None
    wait_until(lambda: "file descriptors are free again" in server.log.read_text())
    ask(server.url)
    assert server.log.read_text().count(out) == 1
    assert "Traceback" not in server.log.read_text()


def test_traces_on_a_full_disk_are_dropped_whole(repository, serve, small_disk):
    file = small_disk / "trace.json"
    flags = (f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS")
    server = serve(repository, *flags, "--trace-config=rate=1", "--log-access=false")
    ask(server.url, 10)
    written = len(json.loads(file.read_text()))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as full, suppress(OSError):
        while full.write(bytes(512)):
            pass
    ask(server.url, 200)
    assert len(json.loads(file.read_text())) >= written, "all that is there is whole"
    logged(server, "traces are dropped")
    logged(server, "(No space left on device): free disk space")
    filler.unlink()
    ask(server.url)
    logged(server, "again; ")
    dropped = int(server.log.read_text().rpartition(" were dropped")[0].rpartition(" ")[2])
    ids = {entry["id"] for entry in json.loads(file.read_text())}
    assert len(ids) + dropped == 211
    file.unlink()
    ask(server.url)
    assert {entry["id"] for entry in json.loads(file.read_text())} == {212}


def test_numbered_traces_on_a_full_disk_are_not_kept_in_memory(repository, serve, small_disk):
    file = small_disk / "trace.json"
    flags = [f"--trace-config=triton,file={file}", "--trace-config=triton,log-frequency=2"]
    flags += ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"]
    server = serve(repository, *flags)
    (small_disk / "trace.json.0").mkdir()
    ask(server.url, 4)
    logged(server, "traces are dropped")
    (small_disk / "trace.json.0").rmdir()
    ask(server.url, 2)
    logged(server, "; 4 were dropped")
    assert len({e["id"] for e in json.loads((small_disk / "trace.json.0").read_text())}) == 2


def test_a_repository_that_is_gone_is_logged_once_and_its_models_stay(repository, serve):
    away = repository.with_name("away")
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.05", "--log-verbose=1")
    server = serve(repository, *flags)
    for turn in (1, 2):
        repository.rename(away)
        logged(server, "a repository cannot be read", turn)
        ask(server.url, 20)
        away.rename(repository)
        logged(server, "the repositories can be read again", turn)
    ask(server.url)


def test_models_stay_where_the_mount_of_their_repository_vanishes(repository, serve, small_disk):
    """An empty folder is left where it was mounted: nobody has removed the models."""
    adder(small_disk, "adder", config=ADDER_CONFIG)
    server = serve(small_disk, "--model-control-mode=poll", "--repository-poll-secs=0.05")
    subprocess.run(["umount", "-l", str(small_disk)], check=True)
    try:
        logged(server, "mount the file system with the models")
        ask(server.url)
    finally:
        mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small_disk)]
        subprocess.run(mounted, check=True)
    adder(small_disk, "adder", add=5, config=ADDER_CONFIG)
    adder(small_disk, "other", config=ADDER_CONFIG)
    logged(server, "model other version 1 is ready")
    logged(server, "can be read again")


MILLION = 1_000_000
CONFIG = {
    "max_batch_size": 8,
    "input": [{"name": "X", "data_type": "TYPE_INT32", "dims": [4]}],
    "output": [{"name": "Y", "data_type": "TYPE_INT32", "dims": [4]}],
}


def sample(**given: object) -> dict[str, object]:
    """A configuration with a warm-up."""
    zeros = {"data_type": "TYPE_INT32", "dims": given.pop("dims", [4]), "zero_data": True}
    return {"model_warmup": [{"name": "s", "inputs": {"X": zeros}, **given}]}


def state(*dims: int) -> dict[str, object]:
    """A configuration of sequences that begin with zeros."""
    zeros = {"name": "z", "data_type": "TYPE_INT32", "dims": dims, "zero_data": True}
    tensors = {"input_name": "X", "output_name": "Y", "data_type": "TYPE_INT32", "dims": dims}
    return {"sequence_batching": {"state": [{**tensors, "initial_state": [zeros]}]}, "input": []}


COSTLY = {
    "instances": ({"instance_group": [{"count": MILLION}]}, "1000000 instances"),
    "groups": ({"instance_group": [{"count": 40}] * 40}, "1600 instances"),
    "gpus": ({"instance_group": [{"count": 40, "gpus": list(range(40))}]}, "1600 instances"),
    "runs": (sample(count=MILLION), "1000000 runs, over the limit of 10000"),
    "rows": ({"max_batch_size": 10**9, **sample(batch_size=10**9)}, "lower its batch_size"),
    "dims": (sample(dims=[MILLION, MILLION]), "lower its batch_size or dims"),
    "state": (state(MILLION, MILLION), "state 'X'"),
}


@pytest.fixture(scope="module")
def amounts(tmp_path_factory):
    """A server whose models are loaded by requests."""
    repository = tmp_path_factory.mktemp("amounts")
    adder(repository, "adder", config=ADDER_CONFIG)
    below = deep = "adder"
    for level in range(40):
        deep = chain(repository, f"deep{level}", deep).name
    for level in range(9):
        below = chain(repository, f"double{level}", below, below).name
    server = start_server(repository, repository, ["--model-control-mode=explicit"])
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("upload", [False, True], ids=["override", "upload"])
@pytest.mark.parametrize("asked", COSTLY)
def test_a_number_that_costs_is_refused(amounts, tmp_path, asked, upload):
    given, said = COSTLY[asked]
    parameters: dict[str, object] = {"config": json.dumps(CONFIG | given)}
    if upload:
        model = adder(tmp_path, "adder") / "1" / "model.onnx"
        parameters["file:1/model.onnx"] = base64.b64encode(model.read_bytes()).decode()
    process = psutil.Process(amounts.process.pid)
    threads, memory = process.num_threads(), process.memory_info().rss
    url = f"{amounts.url}/v2/repository/models/adder/load"
    answer = httpx.post(url, json={"parameters": parameters}, timeout=60)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert process.num_threads() <= threads + 8  # of the pool that loads
    assert process.memory_info().rss < memory + (200 << 20)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deep39", "more than 32 deep"),
        ("double8", "each request would run 511 models and ensembles, over the limit of 256"),
    ],
)
def test_ensembles_that_multiply_are_refused(amounts, name, said):
    answer = httpx.post(f"{amounts.url}/v2/repository/models/{name}/load", timeout=60)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_numbers_that_cost_nothing_are_taken(amounts):
    for given in (
        {"max_batch_size": 10**9},
        {"dynamic_batching": {"priority_levels": 10**9, "default_priority_level": 1}},
        {"dynamic_batching": {"max_queue_delay_microseconds": 10**9}},
        {"instance_group": [{"count": 64, "rate_limiter": {"priority": 10**9}}]},
        {"parameters": {"INFERENCE_NUM_THREADS": {"string_value": "1000000"}}},
    ):
        parameters = {"config": json.dumps(CONFIG | given)}
        url = f"{amounts.url}/v2/repository/models/adder/load"
        answer = httpx.post(url, json={"parameters": parameters}, timeout=60)
        assert answer.status_code == 200, (given, answer.text)
    assert psutil.Process(amounts.process.pid).num_threads() < 200


def test_threads_that_cannot_be_started_end_again(tmp_path):
    """A model for which there is no room fails alone; no thread of it stays."""
    adder(tmp_path, "adder", config=ADDER_CONFIG + "instance_group { count: 60 }")
    program = """
import resource, sys, threading
from pathlib import Path
from tests.server.registries import serving
from fovea_preprocess.errors import InvalidRequest
with serving(Path(sys.argv[1]), model_control_mode="explicit") as registry:
    registry.load("adder")
    registry.unload("adder")
    before = threading.active_count()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (150 << 20),) * 2)
    threading.stack_size(8 << 20)
    try:
        registry.load("adder")
    except InvalidRequest as error:
        print(str(error).strip())
    print(threading.active_count() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    said, left = done.stdout.strip().splitlines()
    assert "threads of model 'adder' could be started (can't start new thread)" in said
    assert left == "0"
