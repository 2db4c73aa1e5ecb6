"""A machine without room: descriptors, disks, and a repository that is gone for a while."""

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from tests.forked import PROGRAM
from tests.server.registries import ADDER_CONFIG, adder, wait_until
from tests.serving import RunningServer

pytestmark = pytest.mark.slow

FOVEA = (sys.executable, "-m", "fovea_server.cli.main")
INPUT = {"name": "X", "datatype": "INT32", "shape": [1, 4], "data": [0] * 4}


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
        f"error: this process may have {limit} files open, and a server needs 64, and one more "
        "for each connection: raise the limit (`ulimit -n`"
    ) in done.stderr
    assert len(done.stderr.splitlines()) == 2  # behind the version in the log


def test_the_fewest_descriptors_that_are_said_suffice(tmp_path, serve):
    adder(tmp_path / "repository", "adder", config=ADDER_CONFIG)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        server = serve(tmp_path / "repository")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    ask(server.url)


def test_requests_that_are_answered_make_room_though_their_bodies_never_end(tmp_path, serve):
    adder(tmp_path / "repository", "adder", config=ADDER_CONFIG)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    try:
        server = serve(tmp_path / "repository", program=PROGRAM)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    head = b"POST /v2/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    for port, path in ((server.port, "/v2/health/live"), (server.metrics_port, "/metrics")):
        with ExitStack() as stack:
            # More than either port may have.
            for _ in range(60):
                line = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                line.sendall(head)
                assert line.recv(12).startswith(b"HTTP/1.1 40")
            assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200


def test_descriptors_that_run_out_are_logged_once_and_come_back(tmp_path, serve):
    adder(tmp_path / "repository", "adder", config=ADDER_CONFIG)
    server = serve(tmp_path / "repository")
    ask(server.url)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (80, 80))
    with ExitStack() as stack:
        for _ in range(100):
            with suppress(ConnectionError):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        logged(server, "no file descriptor is left (Too many open files; this process may have 80)")
        # A server that is full stays alive.
        assert server.process.poll() is None
    wait_until(lambda: "there are file descriptors again" in server.log.read_text())
    ask(server.url)
    assert (
        server.log.read_text().count("no file descriptor is left (Too many open files; this") == 1
    )
    assert "Traceback" not in server.log.read_text()


def test_traces_on_a_full_disk_are_dropped_whole(tmp_path, serve, small_disk):
    adder(tmp_path / "repository", "adder", config=ADDER_CONFIG)
    file = small_disk / "trace.json"
    flags = (f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS")
    server = serve(tmp_path / "repository", *flags, "--trace-config=rate=1", "--log-access=false")
    ask(server.url, 10)
    written = len(json.loads(file.read_text()))
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as full, suppress(OSError):
        while full.write(bytes(512)):
            pass
    ask(server.url, 200)
    assert len(json.loads(file.read_text())) >= written, "all that is there is whole"
    logged(server, "traces cannot be written to")
    logged(server, "(No space left on device), and are dropped until they can: free some space")
    filler.unlink()
    ask(server.url)
    logged(server, "again; ")
    dropped = int(server.log.read_text().rpartition(" were dropped")[0].rpartition(" ")[2])
    ids = {entry["id"] for entry in json.loads(file.read_text())}
    assert len(ids) + dropped == 211
    file.unlink()
    ask(server.url)
    assert {entry["id"] for entry in json.loads(file.read_text())} == {212}


def test_numbered_traces_on_a_full_disk_are_not_kept_in_memory(tmp_path, serve, small_disk):
    adder(tmp_path / "repository", "adder", config=ADDER_CONFIG)
    file = small_disk / "trace.json"
    flags = [f"--trace-config=triton,file={file}", "--trace-config=triton,log-frequency=2"]
    flags += ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"]
    server = serve(tmp_path / "repository", *flags)
    (small_disk / "trace.json.0").mkdir()
    ask(server.url, 4)
    logged(server, "traces cannot be written to")
    (small_disk / "trace.json.0").rmdir()
    ask(server.url, 2)
    logged(server, "; 4 were dropped")
    assert len({e["id"] for e in json.loads((small_disk / "trace.json.0").read_text())}) == 2


def test_a_repository_that_is_gone_is_logged_once_and_its_models_stay(tmp_path, serve):
    repository, away = tmp_path / "repository", tmp_path / "away"
    adder(repository, "adder", config=ADDER_CONFIG)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.05", "--log-verbose=1")
    server = serve(repository, *flags)
    for turn in (1, 2):
        repository.rename(away)
        logged(server, "a repository cannot be read", turn)
        ask(server.url, 20)
        away.rename(repository)
        logged(server, "the repositories can be read again", turn)
    ask(server.url)


def test_models_stay_where_the_mount_of_their_repository_vanishes(tmp_path, serve, small_disk):
    """An empty folder is left where it was mounted: nobody has removed the models."""
    adder(small_disk, "adder", config=ADDER_CONFIG)
    server = serve(small_disk, "--model-control-mode=poll", "--repository-poll-secs=0.05")
    subprocess.run(["umount", "-l", str(small_disk)], check=True)
    try:
        logged(server, "is its file system mounted?")
        ask(server.url)
    finally:
        mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small_disk)]
        subprocess.run(mounted, check=True)
    adder(small_disk, "adder", add=5, config=ADDER_CONFIG)
    adder(small_disk, "other", config=ADDER_CONFIG)
    logged(server, "model other version 1 is ready")
    logged(server, "can be read again")
