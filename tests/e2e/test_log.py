"""What an operator reads: every request where that is asked, and no lines but Fovea's own."""

import re
import socket
from pathlib import Path

import grpc
import httpx
import onnx
import pytest
from onnx import TensorProto, helper
from tests.certificates import make_pair

LINE = re.compile(r"\d{4}-\d\d-\d\d \S+ (DEBUG|INFO|WARNING|ERROR) +fovea_[\w.]+: .")
METHOD = "/inference.GRPCInferenceService/"


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


def requests_of(server) -> list[str]:
    lines = server.log.read_text().splitlines()
    return [line.partition("fovea_server.requests: ")[2] for line in lines if "requests:" in line]


def test_every_request_is_told_over_http_and_grpc(demo_repository, serve, scene):
    server = serve(demo_repository, "--log-verbose=1")
    httpx.get(f"{server.url}/v2/models/digits")
    httpx.post(f"{server.predict_url('digits')}?conf=0.5", content=scene)
    httpx.get(f"{server.url}/v1/nothing")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        channel.unary_unary(f"{METHOD}ServerLive")(b"")
        channel.unary_unary(f"{METHOD}ModelMetadata")(b"\n\6digits")
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(f"{METHOD}ModelInfer")(b"\n\6nobody")
        assert list(channel.stream_stream(f"{METHOD}ModelStreamInfer")(iter([b""])))
        strict = [("triton_grpc_error", "true")]
        with pytest.raises(grpc.RpcError):
            list(channel.stream_stream(f"{METHOD}ModelStreamInfer")(iter([b""]), metadata=strict))
    assert server.stop() == 0
    told = [line for line in requests_of(server) if "/health/" not in line]
    assert told == [
        "GET '/v2/models/digits' 200",
        "POST '/v1/models/digits/predict?conf=0.5' 200",
        "GET '/v1/nothing' 404",
        "gRPC ServerLive OK",
        "gRPC ModelMetadata 'digits' OK",
        "gRPC ModelInfer 'nobody' NOT_FOUND",
        "gRPC stream OK",
        "gRPC stream NOT_FOUND",
    ]


def test_no_library_speaks_for_itself(repository, tmp_path, serve):
    key, certificate = make_pair(tmp_path, "server")
    server = serve(
        repository,
        "--grpc-use-ssl=true",
        f"--grpc-server-key={key}",
        f"--grpc-server-cert={certificate}",
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
    assert any(f"HTTP on 127.0.0.1 port {server.port}" in line for line in lines)
