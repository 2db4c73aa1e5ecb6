"""Secrets that others on the machine cannot read, and servers that have none."""

from pathlib import Path

import httpx
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

OPEN = "no secret protects"


def test_a_secret_in_a_file_or_the_environment_is_in_no_command_line(
    serve, demo_repository, tmp_path, monkeypatch
):
    file = tmp_path / "admin"
    file.write_text("hunter2\n")
    monkeypatch.setenv("FOVEA_GRPC_RESTRICTED_PROTOCOL", "inference,metadata:key=of-environment")
    server = serve(demo_repository, f"--http-restricted-api=metadata:admin@{file}")
    listed = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    assert b"hunter2" not in listed
    assert b"of-environment" not in listed
    url = f"{server.url}/v1/models"
    assert httpx.get(url).status_code == 403
    assert httpx.get(url, headers={"admin": "wrong"}).status_code == 403
    assert httpx.get(url.replace("/v1/models", "/v2"), headers={"admin": "hunter2"}).is_success
    with InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_server_metadata()
        given = {"triton-grpc-protocol-key": "of-environment"}
        assert client.get_server_metadata(headers=given)
    assert server.stop() == 0
    assert "hunter2" not in server.log.read_text()


def test_a_file_that_cannot_be_read_ends_the_start(fovea, demo_repository, tmp_path):
    gone = tmp_path / "gone"
    code, _, told = fovea(
        "serve", str(demo_repository), f"--http-restricted-api=logging:key@{gone}"
    )
    assert code == 2
    assert f"cannot be read from {gone} (No such file or directory)" in told


@pytest.mark.parametrize(
    ("flags", "open_doors"),
    [
        (["--host=0.0.0.0"], "HTTP at 0.0.0.0 and gRPC at 0.0.0.0:"),
        (["--host=0.0.0.0", "--http-restricted-api=inference:k=v"], "gRPC at 0.0.0.0:"),
        (
            ["--host=0.0.0.0", "--http-restricted-api=logging:k=v", "--no-allow-grpc"],
            "HTTP at 0.0.0.0:",
        ),
        (["--host=0.0.0.0", "--grpc-address=127.0.0.1"], "HTTP at 0.0.0.0:"),
        (
            ["--host=0.0.0.0", "--no-allow-grpc", "--http-restricted-api=logging,inference:k=v"],
            None,
        ),
        (["--metrics-address=0.0.0.0"], None),
        ([], None),
    ],
)
def test_a_server_of_a_network_without_a_secret_says_so_once(
    flags, open_doors, serve, demo_repository
):
    server = serve(demo_repository, *flags)
    assert server.stop() == 0
    told = [line for line in server.log.read_text().splitlines() if OPEN in line]
    assert len(told) == (open_doors is not None)
    if open_doors is not None:
        assert f"{OPEN} {open_doors}" in told[0]
        assert "--http-restricted-api" in told[0]
