"""Secrets that others on the machine cannot read, and servers that have none."""

from pathlib import Path

import httpx
import pytest
from tests.serving import PROGRAM
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


def test_a_secret_in_a_file_or_the_environment_is_in_no_command_line(
    serve, demo_repository, tmp_path, monkeypatch
):
    file = tmp_path / "admin"
    file.write_text("hunter2\n")
    monkeypatch.setenv("FOVEA_GRPC_RESTRICTED_PROTOCOL", "inference,metadata:key=of-environment")
    restricted = f"--http-restricted-api=metadata:admin@{file}"
    server = serve(demo_repository, restricted, program=PROGRAM)
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
    ("flags", "doors"),
    [
        (["--host=0.0.0.0"], "HTTP at 0.0.0.0 and gRPC at 0.0.0.0 and the metrics at 0.0.0.0: "),
        (["--host=0.0.0.0", "--no-allow-grpc", "--metrics-address=127.0.0.1"], "HTTP at 0.0.0.0: "),
        (["--metrics-address=0.0.0.0"], "the metrics at 0.0.0.0: "),
        ([], None),
    ],
)
@pytest.mark.parametrize("no_keys", [False, True])
def test_a_server_of_a_network_without_keys_says_so_once(
    flags, doors, no_keys, serve, demo_repository
):
    server = serve(demo_repository, *flags, *(["--no-keys"] if no_keys else []))
    assert server.stop() == 0
    said = "everybody may do all, as --no-keys says" if no_keys else "fovea key add NAME"
    told = [line for line in server.log.read_text().splitlines() if said in line]
    assert len(told) == (doors is not None)
    if doors is not None:
        assert doors in told[0]
        assert (" WARNING " in told[0]) != no_keys
