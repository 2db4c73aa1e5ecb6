"""Rules of the house that no linter knows."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [
    path
    for folder in ("preprocess", "engines", "server", "client")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PACKAGES, ids=name)
def test_only_settings_reads_the_environment(path):
    if path.name == "settings.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("os", "environ"), ("os", "getenv")}


def test_only_v1_imports_the_web_framework_in_the_core():
    server = ROOT / "server" / "fovea_server"
    for path in sorted(server.rglob("*.py")):
        if path.is_relative_to(server / "http" / "v1"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.startswith("fastapi"), name(path)


def test_serving_does_not_load_what_only_a_build_needs():
    import subprocess
    import sys

    code = (
        "import sys, fovea_server.http.v1.app, fovea_server.serve;"
        "print([m for m in ('onnx', 'onnxslim', 'onnxruntime', 'openvino', 'grpc',"
        " 'opentelemetry.sdk')"
        " if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_protobuf_is_read_and_written_at_the_edges_only():
    """The file config.pbtxt, ONNX files, gRPC, and the answer with a model's configuration."""
    edges = (
        "engines/repository/config_pbtxt.py",
        "lab/config_edit.py",
        "engines/graph/",
        "extensions/grpc_calls.py",
        "server/grpc/",
        "bench/mlperf/grpc_requests.py",
        "server/models/config/document.py",
    )
    names = ("google.protobuf", "model_config_messages", "service_pb2")
    inside = [
        path
        for path in PACKAGES
        if any(name in path.read_text() for name in names)
        and not any(f"/fovea_{edge}" in path.as_posix() for edge in edges)
    ]
    assert inside == []
