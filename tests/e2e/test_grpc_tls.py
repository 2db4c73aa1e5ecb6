"""gRPC over TLS, and over TLS that asks clients who they are."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
import pytest
from tests import certificates

from fovea_preprocess.errors import InvalidOption
from fovea_server.grpc.server import server_certificates
from fovea_server.settings import Settings

pytestmark = pytest.mark.slow

READY = "/grpc.health.v1.Health/Check"

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def make_pair(tmp_path_factory) -> Callable[[str], Pair]:
    """Makes a key and a certificate that it signs itself."""
    return partial(certificates.make_pair, tmp_path_factory.mktemp("certificates"))


def healthy(port: int, credentials: grpc.ChannelCredentials) -> bool:
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        try:
            return channel.unary_unary(READY)(b"", timeout=30).hex() == "0801"
        except grpc.RpcError:
            return False


def test_the_certificate_is_shown(make_pair, demo_repository, serve):
    key, certificate = make_pair("server")
    server = serve(
        demo_repository,
        "--grpc-use-ssl=true",
        f"--grpc-server-key={key}",
        f"--grpc-server-cert={certificate}",
    )
    trusting = grpc.ssl_channel_credentials(certificate.read_bytes())
    assert healthy(server.grpc_port, trusting)
    other = grpc.ssl_channel_credentials(make_pair("other")[1].read_bytes())
    assert not healthy(server.grpc_port, other)


def test_clients_must_show_theirs(make_pair, demo_repository, serve):
    key, certificate = make_pair("server")
    client_key, client_certificate = make_pair("client")
    server = serve(
        demo_repository,
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-key={key}",
        f"--grpc-server-cert={certificate}",
        f"--grpc-root-cert={client_certificate}",
    )
    trusted = certificate.read_bytes()
    known = grpc.ssl_channel_credentials(
        trusted, client_key.read_bytes(), client_certificate.read_bytes()
    )
    assert healthy(server.grpc_port, known)
    assert not healthy(server.grpc_port, grpc.ssl_channel_credentials(trusted))


def test_files_that_do_not_do_are_told(make_pair):
    key, certificate = make_pair("server")
    other_key, _ = make_pair("other")
    for files, told in (
        ({}, "gRPC over TLS needs --grpc-server-key"),
        ({"grpc_server_key": key}, "gRPC over TLS needs --grpc-server-cert"),
        ({"grpc_server_key": "/nowhere", "grpc_server_cert": certificate}, "No such file"),
        ({"grpc_server_key": other_key, "grpc_server_cert": certificate}, "KEY_VALUES_MISMATCH"),
        ({"grpc_server_key": certificate, "grpc_server_cert": certificate}, "PEM"),
    ):
        with pytest.raises(InvalidOption, match=told):
            server_certificates(Settings(grpc_use_ssl=True, **files))
