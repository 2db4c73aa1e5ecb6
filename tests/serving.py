"""A real server for tests: the `fovea` command, a process of its own, real ports."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.forked import CAN_FORK, PROGRAM, Forked

# A server starts and stops within two seconds, and on a machine that is busy within minutes.
_PATIENCE_S = 180


@dataclass
class RunningServer:
    """`fovea serve` on ports of its own."""

    process: subprocess.Popen[str] | Forked
    port: int
    log: Path
    grpc_port: int
    metrics_port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def predict_url(self, model: str) -> str:
        return f"{self.url}/v1/models/{model}/predict"

    def metrics(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text

    def metric(self, name: str, *labels: str) -> float:
        """The first value of a metric that has such labels as `model="digits"`."""
        lines = [line for line in self.metrics().splitlines() if re.match(rf"{name}[ {{]", line)]
        found = [line for line in lines if all(label in line for label in labels)]
        assert found, (name, labels)
        return float(found[0].rpartition(" ")[2])

    def memory_mb(self, field: str = "VmRSS") -> float:
        """What the process has in memory, in MiB; `VmHWM` is the most that it had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
        assert found, field
        return int(found[1]) / 1024

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE_S)


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Ports that nobody else is given meanwhile, all different; a server can listen on them.

    Linux lets one listen where sockets with SO_REUSEADDR are bound and do not listen themselves.
    """
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", 0))
        yield [probe.getsockname()[1] for probe in probes]


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, all different."""
    with reserved_ports(count) as ports:
        return ports


def start_server(
    repository: Path | str,
    folder: Path,
    flags: Sequence[str] = (),
    *,
    wait: bool = True,
    stderr: int | None = None,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] | None = None,
    ports: Sequence[int] = (),
) -> RunningServer:
    """Serve a repository; returns when it is ready, or without `wait` when it is alive.

    Args:
        repository: the models.
        folder: where the log goes.
        flags: of `fovea serve`, beside the repository and the ports.
        wait: for readiness.
        stderr: a descriptor where the log goes instead.
        environment: the server's; default that of the tests.
        program: arguments of Python that run `fovea`; default PROGRAM, or a fork of it.
        ports: of HTTP, gRPC and metrics; default free ones.
    """
    with reserved_ports(3) as free:
        port, grpc_port, metrics_port = ports or free
        log = folder / f"serve-{port}.log"
        given = {"--http-port": port, "--grpc-port": grpc_port, "--metrics-port": metrics_port}
        ported = (f"{flag}={number}" for flag, number in given.items())
        arguments = ["serve", str(repository), *ported, *flags]
        process: subprocess.Popen[str] | Forked
        with log.open("a") as stream:
            said = stream.fileno() if stderr is None else stderr
            if program is None and environment is None and CAN_FORK:
                process = Forked(arguments, said)
            else:
                command = [sys.executable, *(program or PROGRAM), *arguments]
                process = subprocess.Popen(command, stderr=said, text=True, env=environment)
        scheme = "https" if any(flag.startswith("--http-server-cert") for flag in flags) else "http"
        server = RunningServer(process, port, log, grpc_port, metrics_port, scheme)
        until = time.monotonic() + _PATIENCE_S
        url = server.url + ("/v2/health/ready" if wait else "/v2/health/live")
        with httpx.Client(verify=False) as client:
            while time.monotonic() < until and process.poll() is None:
                with suppress(httpx.TransportError):
                    if client.get(url).status_code == 200:
                        return server
                time.sleep(0.05)
        process.kill()
        process.wait()
        pytest.fail(f"the server did not start:\n{log.read_text()}")


def wait_until_ready(port: int) -> None:
    """Wait for a server that was started by its command."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail("the server did not become ready")
