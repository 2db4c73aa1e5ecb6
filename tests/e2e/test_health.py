"""`fovea health`: the health check of the images, run as they run it."""

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from tests.certificates import make_pair
from tests.forked import PROGRAM, Forked, forked_fovea
from tests.keyed import until
from tests.serving import free_ports

pytestmark = pytest.mark.slow

# Nothing of this may be imported by what runs every ten seconds.
HEAVY = {"cv2", "fastapi", "grpc", "httpx", "numpy", "onnx", "openvino", "rich", "uvicorn"}


def health(*flags: str, **environment: object) -> subprocess.CompletedProcess[str]:
    settings = {f"FOVEA_{name.upper()}": str(value) for name, value in environment.items()}
    done = subprocess.run(
        [*forked_fovea(), "health", *flags],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert len((done.stdout + done.stderr).splitlines()) == 1 or "--json" in flags
    return done


@pytest.fixture
def serve_with(tmp_path):
    """Start servers that `fovea health` alone can reach."""
    started = []

    def start(repository: Path, *flags: str) -> None:
        arguments = ["serve", str(repository), "--allow-metrics=false", *flags]
        with (tmp_path / "log").open("w") as log:
            started.append(Forked(arguments, log.fileno()))
        # Each question is a process, which would take the core that the server starts on.
        log = tmp_path / "log"
        until(lambda: " port " in log.read_text() or started[-1].poll() is not None)
        asked = [flag for flag in flags if not flag.startswith("--grpc-root-cert")]
        until(lambda: not health("--live", *asked).returncode)

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_it_reads_the_environment_as_the_server_does(demo_server):
    for address in ("127.0.0.1", "0.0.0.0", "localhost"):
        done = health(http_port=demo_server.port, http_address=address)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("The server at http://")
        assert done.stdout.endswith(" is ready.\n")
    # A flag wins, and the default ports of what is not asked are nobody's business.
    assert health(f"--port={demo_server.port}", http_port=1).returncode == 0
    assert health("--port=8001").returncode == health("--port=8002").returncode == 1


def test_a_server_at_an_address(demo_server, serve, tmp_path):
    for url in (demo_server.url, f"127.0.0.1:{demo_server.port}", f"{demo_server.url}/"):
        done = health("--url", url, http_port=1, http_address="192.0.2.1", allow_http="false")
        assert (done.returncode, done.stdout) == (0, f"The server at {demo_server.url} is ready.\n")
    assert "there is no model in" in health("--url", serve(tmp_path, wait=False).url).stderr


def test_a_server_that_is_not_ready_says_why_and_is_live(serve, tmp_path):
    server = serve(tmp_path, wait=False)
    done = health(http_port=server.port)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not ready: there is no model in" in done.stderr
    assert health("--live", http_port=server.port).returncode == 0


def test_json_for_programs_and_no_server_at_all(demo_server):
    done = health("--json", http_port=demo_server.port)
    assert json.loads(done.stdout) == {
        "check": "ready",
        "url": f"http://127.0.0.1:{demo_server.port}",
        "healthy": True,
        "reason": None,
    }
    [port] = free_ports(1)
    document = json.loads(health("--json", "--live", http_port=port).stdout)
    assert (document["check"], document["healthy"]) == ("live", False)
    assert "Connection refused" in document["reason"]
    done = health("--live", http_port=port)
    assert done.returncode == 1
    assert f"http://127.0.0.1:{port} is not live: it does not respond" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = health("--timeout=0.2", http_port=listener.getsockname()[1])
    assert (done.returncode, "timed out" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--allow-http=false", "--allow-grpc=false"), "health cannot be checked"),
        (("--port=0",), "give --http-port"),
        (("--port=none",), "--http-port is 'none'"),
        (("--url=ftp://h",), "--url is 'ftp://h', but must be a URL such as http://"),
        (("--url=http://h:x",), "but must be a URL such as http"),
        (("--url=http://127.0.0.1:1/v1",), "but must be a URL such as http"),
        (("--url=http://h", "--port=80"), "give --url or --http-port, not both"),
        (("--timeout=1e400",), "error: "),
        (("--timeout=nan",), "error: "),
        (("--no-such-flag",), "error: "),
        (("--http-address=.x", "--grpc-port=1"), "it does not respond"),
        (("--http-address=.x", "--grpc-port=1", "--allow-http=false"), "it does not respond"),
    ],
)
def test_what_cannot_be_asked_exits_as_docker_wants(flags, told):
    # Docker reserves every other code.
    done = health(*flags)
    assert (done.returncode, told in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("server", ["http", "grpc"])
@pytest.mark.parametrize("wrong", ["se\u20accret", "secret\n "])
def test_a_secret_that_no_header_can_carry(server, wrong):
    name = {"http": "http_restricted_api", "grpc": "grpc_restricted_protocol"}[server]
    done = health(**{"allow_http": server == "http", name: f"health:key={wrong}x"})
    assert done.returncode == 1
    assert "cannot be sent as a header" in done.stderr
    assert "cret" not in done.stderr.replace("secret of", "")


def test_settings_of_what_is_not_asked_are_the_servers_alone(demo_server):
    others = {"load_model": "x", "metrics_port": "x", "repository_poll_secs": 0}
    assert health(http_port=demo_server.port, grpc_port=demo_server.port, **others).returncode == 0
    # As many lines as one, which `health` asserts.
    done = health("--allow-http=false", f"--grpc-port={demo_server.grpc_port}", **others)
    assert done.returncode == 0


def _once_ready(*flags: str) -> str:
    until(lambda: not health(*flags).returncode)
    return health(*flags).stdout


def test_https_its_certificate_and_the_secret(serve_with, demo_repository, tmp_path, monkeypatch):
    key, certificate = make_pair(tmp_path, "camera.example")
    [port] = free_ports(1)
    tls = [
        f"--http-port={port}",
        "--allow-grpc=false",
        f"--http-server-key={key}",
        f"--http-server-cert={certificate}",
    ]
    secret = "--http-restricted-api=health:probe-key=secret"
    serve_with(demo_repository, *tls, secret)
    assert "https://" in health("--live", *tls, secret).stdout
    refused = health(*tls)
    assert refused.returncode == 1
    assert "This API is restricted, expecting header 'probe-key'" in refused.stderr
    unencrypted = health(tls[0], secret)
    assert unencrypted.returncode == 1
    assert "it does not respond" in unencrypted.stderr
    assert "if the server uses TLS" in unencrypted.stderr
    done = health(f"--url=https://localhost:{port}", secret)
    assert (done.returncode, "CERTIFICATE_VERIFY_FAILED" in done.stderr) == (1, True)
    assert "--url https://..." in health(f"--url=http://localhost:{port}", secret).stderr
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert "is ready" in _once_ready(f"--url=https://localhost:{port}", secret)


def test_without_http_it_asks_grpc(serve_with, demo_repository, tmp_path):
    grpc_only = ["--allow-http=false", f"--grpc-port={free_ports(1)[0]}"]
    secret = "--grpc-restricted-protocol=health:Probe-Key=secret"
    serve_with(demo_repository, *grpc_only, secret)
    told = _once_ready(*grpc_only, secret)
    assert told.startswith("The server at grpc://127.0.0.1:")
    assert "This protocol is restricted" in health(*grpc_only).stderr

    empty = ["--allow-http=false", f"--grpc-port={free_ports(1)[0]}"]
    serve_with(tmp_path, *empty)
    done = health(*empty)
    assert done.returncode == 1
    assert "is not ready: see the server's log" in done.stderr


def test_grpc_over_tls_whatever_host_the_certificate_names(
    serve_with, demo_server, demo_repository, tmp_path
):
    key, certificate = make_pair(tmp_path, "camera.example")
    tls = [
        "--allow-http=false",
        f"--grpc-port={free_ports(1)[0]}",
        "--grpc-use-ssl=true",
        f"--grpc-server-key={key}",
        f"--grpc-server-cert={certificate}",
    ]
    serve_with(demo_repository, *tls)
    assert _once_ready(*tls)
    # A server that asks clients for a certificate is shown its own.
    mutual = [*tls, "--grpc-use-ssl-mutual=true", f"--grpc-root-cert={certificate}"]
    mutual[1] = f"--grpc-port={free_ports(1)[0]}"
    serve_with(demo_repository, *mutual)
    assert _once_ready(*mutual[:-1])
    plain = f"--grpc-port={demo_server.grpc_port}"
    assert "it does not respond" in health(tls[0], plain, *tls[2:]).stderr


def test_three_connections_have_one_deadline(tmp_path):
    key, certificate = make_pair(tmp_path, "camera.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    shown: list[str] = []

    def show_slowly(listener: socket.socket) -> None:
        with suppress(OSError):
            while connection := listener.accept()[0]:
                shown.append("certificate")
                time.sleep(0.9)
                with suppress(OSError), context.wrap_socket(connection, server_side=True):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=show_slowly, args=[listener], daemon=True).start()
        port = listener.getsockname()[1]
        files = (f"--grpc-server-key={key}", f"--grpc-server-cert={certificate}")
        grpc_only = ("--allow-http=false", f"--grpc-port={port}", "--grpc-use-ssl=true", *files)
        done = health("--timeout=1.5", *grpc_only)
        listener.shutdown(socket.SHUT_RDWR)
    assert done.returncode == 1
    assert "timed out" in done.stderr
    # Each takes more than half of the time, so that there is none left for the third.
    assert len(shown) <= 2


def test_it_imports_nothing_heavy(demo_server):
    flags = ("health", f"--port={demo_server.port}")
    command = [sys.executable, "-X", "importtime", *PROGRAM, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "http.client" in imported
    assert not HEAVY & imported
    engines = {name for name in imported if name.startswith("fovea_engines")}
    assert not engines
