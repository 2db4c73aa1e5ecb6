"""SIGHUP: the log file is opened anew, and the certificates are read again."""

import signal
import ssl

import grpc
import httpx
import pytest
from tests.certificates import make_pair
from tests.e2e.test_grpc_tls import healthy
from tests.keyed import until

pytestmark = pytest.mark.slow


def test_the_log_and_the_certificates_are_renewed(demo_repository, serve, tmp_path):
    key, certificate = make_pair(tmp_path, "server")
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
        make_pair(tmp_path, "server")
        told("SIGHUP: the log file and the certificates were opened anew")
        renewed = certificate.read_bytes()
        assert trusted_with(renewed) == (True, True)
        assert trusted_with(before) == (False, False)
        size = rotated.stat().st_size
        # Those that are damaged change nothing.
        certificate.write_text("no certificate")
        told("SIGHUP: the certificates stay as they were: HTTPS cannot be set up from")
        assert trusted_with(renewed) == (True, True)
        assert rotated.stat().st_size == size
    assert server.stop() == 0
    assert "stopped" in log.read_text()


def test_a_server_without_either_goes_on(demo_repository, serve):
    server = serve(demo_repository)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: "SIGHUP" in server.log.read_text())
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
