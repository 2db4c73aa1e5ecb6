"""TLS over HTTP and gRPC: certificates that are shown, asked for, and renewed by SIGHUP."""

import signal
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
from tests import certificates
from tests.certificates import make_pair as pair
from tests.keyed import key as new_key
from tests.keyed import until

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


def test_keys_over_plain_grpc_are_warned_of(make_pair, demo_repository, serve, tmp_path):
    key, certificate = make_pair("server")
    new_key("add", "owner", "--keys", tmp_path / "keys.json")
    https = (f"--http-server-key={key}", f"--http-server-cert={certificate}")
    grpcs = ("--grpc-use-ssl", f"--grpc-server-key={key}", f"--grpc-server-cert={certificate}")
    flags = (*https, f"--keys={tmp_path / 'keys.json'}", "--grpc-address=0.0.0.0")
    for more, warned in (((), True), (grpcs, False)):
        server = serve(demo_repository, *flags, *more)
        assert ("gRPC at 0.0.0.0 has no TLS" in server.log.read_text()) == warned


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
    for given in (None, "/nowhere", other_key, certificate):
        with pytest.raises(InvalidOption):
            server_certificates(
                Settings(grpc_use_ssl=True, grpc_server_key=given, grpc_server_cert=certificate)
            )
    with pytest.raises(InvalidOption, match="--grpc-server-cert"):
        server_certificates(Settings(grpc_use_ssl=True, grpc_server_key=key))


def test_the_log_and_the_certificates_are_renewed(demo_repository, serve, tmp_path):
    key, certificate = pair(tmp_path, "server")
    log, rotated = tmp_path / "fovea.log", tmp_path / "fovea.log.1"
    server = serve(
        demo_repository,
        f"--log-file={log}",
        *(f"--http-server-key={key}", f"--http-server-cert={certificate}"),
        *("--grpc-use-ssl", f"--grpc-server-key={key}", f"--grpc-server-cert={certificate}"),
    )
    before = certificate.read_bytes()

    def told(text: str) -> None:
        """Hang up, and wait for this in the log; what is connected stays so."""
        server.process.send_signal(signal.SIGHUP)
        until(lambda: log.exists() and text in log.read_text())
        assert kept.get("/v1/models").status_code == 200

    def trusted_with(content: bytes) -> tuple[bool, bool]:
        context = ssl.create_default_context(cadata=content.decode())
        try:
            over_http = httpx.get(f"{server.url}/v1/models", verify=context).status_code == 200
        except httpx.ConnectError:
            over_http = False
        return over_http, healthy(server.grpc_port, grpc.ssl_channel_credentials(content))

    context = ssl.create_default_context(cafile=certificate)
    with httpx.Client(base_url=server.url, verify=context, timeout=60) as kept:
        assert kept.get("/v1/models").status_code == 200
        assert trusted_with(before) == (True, True)
        log.rename(rotated)
        pair(tmp_path, "server")
        told("the certificates were reloaded")
        renewed = certificate.read_bytes()
        assert trusted_with(renewed) == (True, True)
        assert trusted_with(before) == (False, False)
        size = rotated.stat().st_size
        # Those that are damaged change nothing.
        certificate.write_text("no certificate")
        told("SIGHUP: the previous certificates stay in use: HTTPS cannot be set up from")
        assert trusted_with(renewed) == (True, True)
        assert rotated.stat().st_size == size
    assert server.stop() == 0
    assert "stopped" in log.read_text()


def test_a_server_without_either_goes_on(demo_repository, serve):
    server = serve(demo_repository)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: "SIGHUP" in server.log.read_text())
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
