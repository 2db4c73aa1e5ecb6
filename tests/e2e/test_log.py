"""What an operator reads: no lines but Fovea's own, and a warning while requests are refused."""

import fcntl
import os
import re
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import httpx
import onnx
import pytest
from onnx import TensorProto, helper
from tests.certificates import make_pair
from tests.serving import PROGRAM, start_server

pytestmark = pytest.mark.slow

LINE = re.compile(r"\d{4}-\d\d-\d\d \S+ (DEBUG|INFO|WARNING|ERROR) +fovea_[\w.]+: .")


@pytest.fixture
def repository(tmp_path) -> Path:
    """A model that takes vectors of any length, and fails on all but those of twelve values."""
    vector = helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["n"])
    matrix = helper.make_tensor_value_info("matrix", TensorProto.FLOAT, ["rows", "columns"])
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [3, 4])
    node = helper.make_node("Reshape", ["vector", "shape"], ["matrix"])
    graph = helper.make_graph([node], "twelve", [vector], [matrix], [shape])
    folder = tmp_path / "repository" / "twelve"
    (folder / "1").mkdir(parents=True)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "1" / "model.onnx"
    )
    (folder / "config.pbtxt").write_text("max_batch_size: 0")
    return folder.parent


def test_no_library_speaks_for_itself(repository, tmp_path, serve):
    key, certificate = make_pair(tmp_path, "server")
    server = serve(
        repository,
        "--grpc-use-ssl=true",
        f"--grpc-server-key={key}",
        f"--grpc-server-cert={certificate}",
        program=PROGRAM,
    )
    tensor = {"name": "vector", "shape": [5], "datatype": "FP32", "data": [0] * 5}
    url = f"{server.url}/v2/models/twelve/infer"
    assert httpx.post(url, json={"inputs": [tensor]}).status_code == 500
    for port in (server.port, server.grpc_port):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"neither TLS nor HTTP\r\n\r\n")
            while connection.recv(1000):
                pass
    assert server.stop() == 0
    lines = server.log.read_text().splitlines()
    assert lines
    assert [line for line in lines if not LINE.match(line)] == []
    told = "\n".join(lines)
    assert f": Fovea {version('fovea-serve')}\n" in told
    assert f": metrics on 127.0.0.1 port {server.metrics_port}: /metrics\n" in told
    assert "no keys are asked for: only programs on this machine reach the server" in told
    [listening] = [line for line in lines if f"HTTP on 127.0.0.1 port {server.port}" in line]
    assert listening.endswith(f"; open {server.url}/ in a browser to try the models")


def test_refused_requests_are_warned_of_once_and_counted_at_the_end(demo_repository, serve, scene):
    server = serve(demo_repository, "--max-held-mb=0.1", "--max-queue=1")
    head = "POST /v1/models/digits/predict HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(scene)}\r\n\r\n"
    url = server.predict_url("digits")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        # It is held until the rest arrives, which it never does.
        connection.sendall(head.encode() + scene[:-1])
        until = time.monotonic() + 60
        while httpx.post(url, content=scene).status_code != 429 and time.monotonic() < until:
            pass
        statuses = [httpx.post(url, content=scene).status_code for _ in range(5)]
        tensors = f"{server.url}/v2/models/digits/infer"
        statuses += [httpx.post(tensors, content=scene).status_code for _ in range(2)]
    assert statuses == [429] * 5 + [503] * 2
    assert server.stop() == 0
    warned = [
        line for line in server.log.read_text().splitlines() if "fovea_server.refused" in line
    ]
    assert len(warned) == 2
    assert "1 request refused in the last minute: 1 queue_full of model 'digits'" in warned[0]
    assert "7 requests refused in the last minute: 7 queue_full of model 'digits'" in warned[1]
    assert "--max-held-mb" in warned[1]


def test_a_log_that_nobody_reads_holds_up_neither_requests_nor_the_end(tmp_path):
    ours, its = os.pipe()
    fcntl.fcntl(its, fcntl.F_SETPIPE_SZ, 4096)
    # A model that is not ready: the event loop itself warns of requests for it.
    file = tmp_path / "repository" / "broken" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no model")
    repository = tmp_path / "repository"
    server = start_server(repository, tmp_path, ["--exit-timeout-secs=3"], wait=False, stderr=its)
    os.close(its)
    try:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for _ in range(100):
                assert client.get(f"/v2/models/{'n' * 200}").status_code == 404
            assert client.post("/v1/models/broken/predict", content=b"x").status_code == 503
            assert client.get("/v2/health/live").status_code == 200
        assert server.stop() == 0
    finally:
        server.process.kill()
        server.process.wait()
        os.close(ours)


def test_a_full_disk_is_told_once(demo_repository, serve):
    server = serve(demo_repository, "--log-file=/dev/full")
    for _ in range(3):
        httpx.get(f"{server.url}/v2/models/nobody")
        time.sleep(0.1)
    assert server.stop() == 0
    (told,) = server.log.read_text().splitlines()
    assert told.startswith("the log cannot be written to /dev/full: No space left on device; ")


def test_a_start_that_fails_shows_what_was_logged_before_its_error(tmp_path):
    command = [sys.executable, "-m", "fovea_server.cli.main", "serve", tmp_path / "nowhere"]
    environment = os.environ | {"FOVEA_NONSENSE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    named, warned, error = done.stderr.splitlines()
    assert f"Fovea {version('fovea-serve')}" in named
    assert "FOVEA_NONSENSE" in warned
    assert error.startswith("error: ")
