"""A container of a manifest, started as a process: its arguments, environment, volumes and probes.

It differs from a real one in three things: a volume is a folder of the test, ports are free ones,
and the root file system is not read-only.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import ROOT
from tests.docker.dockerfile import all_of, read_dockerfile
from tests.serving import free_ports


@dataclass
class Pod:
    """The process, and the probes of its manifest by name."""

    process: subprocess.Popen[bytes]
    container: dict[str, Any]
    ports: dict[int, int]
    log: Path

    @property
    def url(self) -> str:
        """Of HTTP, the port that comes first."""
        return f"http://127.0.0.1:{self.ports[self.container['ports'][0]['containerPort']]}"

    def wait_for(self, name: str) -> None:
        """Ask as kubelet does until the probe succeeds."""
        probe = self.container[name]
        named = {port.get("name"): port["containerPort"] for port in self.container["ports"]}
        port = probe["httpGet"]["port"]
        address = f"http://127.0.0.1:{self.ports[named.get(port, port)]}{probe['httpGet']['path']}"
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            with suppress(httpx.TransportError):
                answer = httpx.get(address, timeout=probe["timeoutSeconds"])
                if 200 <= answer.status_code < 400:
                    return
            time.sleep(0.1)
        pytest.fail(f"{name} did not succeed:\n{self.log.read_text()}")

    def stop(self) -> int:
        """End the process by SIGTERM, as Kubernetes does after preStop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def running(
    container: dict[str, Any],
    mounts: Mapping[str, Path],
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Pod]:
    """Start a container of docker/cpu.Dockerfile.

    Args:
        container: of the manifest.
        mounts: a folder here for each path where a volume is mounted.
        folder: for the log.
        environment: variables instead of the manifest's, such as those of its Secret.
    """
    dockerfile = read_dockerfile(ROOT / "docker" / "cpu.Dockerfile")
    given = dict(
        pair.split("=", 1) for env in all_of(dockerfile, "ENV") for pair in shlex.split(env.text)
    )
    given |= {each["name"]: each["value"] for each in container["env"]}
    given |= environment or {}
    names = [port["containerPort"] for port in container["ports"]]
    # HTTP, gRPC and metrics have these ports unless the manifest gives others.
    names += [port for port in (8000, 8001, 8002) if port not in names]
    ports = dict(zip(names, free_ports(len(names)), strict=True))

    def placed(text: str) -> str:
        for path, here in mounts.items():
            text = str(here) + text[len(path) :] if text.startswith(path) else text
        return text

    def argument(text: str) -> str:
        flag, equals, value = text.partition("=")
        if flag.endswith("-port"):
            return f"{flag}={ports[int(value)]}"
        return f"{flag}{equals}{placed(value)}"

    usual = {"FOVEA_HTTP_PORT": 8000, "FOVEA_GRPC_PORT": 8001, "FOVEA_METRICS_PORT": 8002}
    given = {name: placed(value) for name, value in given.items()}
    given |= {name: str(ports[port]) for name, port in usual.items() if name not in given}
    given["PATH"] = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
    log = folder / "pod.log"
    command = [ROOT / "docker" / "entrypoint.sh", *map(argument, container["args"])]
    with log.open("w") as stream:
        process = subprocess.Popen(["sh", *command], env=given, stderr=stream)
    try:
        yield Pod(process, container, ports, log)
    finally:
        process.kill()
        process.wait()
