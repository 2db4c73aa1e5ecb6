"""The cost of Ray's proxy for each request, and how throughput grows with replicas.

    PYTHONPATH=. python benchmarks/ray_proxy.py ../shared/models/yolov8n.onnx ../shared/data/bus.jpg

Starts `fovea serve` and a cluster of Ray with one node on this machine, both with one core for
the model, and asks them in turns, so that both see the same machine. Prints for each round: latency
of one caller, throughput of four callers, and the CPU time of all processes of a server for each
of their requests, which says what the way through Ray costs even where other programs run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import psutil
import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster
from tests.serving import free_ports, start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan


def latency_ms(url: str, body: bytes, count: int) -> float:
    """Median of one caller."""
    taken = []
    with httpx.Client(timeout=60) as client:
        for _ in range(count):
            began = time.perf_counter()
            client.post(url, content=body).raise_for_status()
            taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


def throughput(url: str, body: bytes, callers: int, count: int) -> float:
    """Answers per second to several callers."""

    def send(_: int) -> None:
        with httpx.Client(timeout=60) as client:
            for _ in range(count // callers):
                client.post(url, content=body).raise_for_status()

    began = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(send, range(callers)))
    return count / (time.perf_counter() - began)


def cpu_s(processes: list[psutil.Process]) -> float:
    """CPU time of some processes so far."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def cpu_ms(processes: list[psutil.Process], url: str, body: bytes, count: int) -> float:
    """CPU time of a server for each request of four callers."""
    before = cpu_s(processes)
    throughput(url, body, 4, count)
    return 1e3 * (cpu_s(processes) - before) / count


def rounds(measure: dict[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Measure each thing once a round."""
    found: dict[str, list[float]] = {name: [] for name in measure}
    for _ in range(count):
        for name, call in measure.items():
            found[name].append(round(call(), 3))
    return found


def deploy(folder: Path, cluster: Cluster, config: dict[str, object]) -> None:
    """Run `fovea ray deploy`."""
    file = folder / "fovea-ray.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "fovea_server.commands.cli", "ray", "deploy"]
    subprocess.run([*command, "--config", file, "--address", cluster.address], check=True)


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100)
    chosen = parser.parse_args()
    body, name = chosen.image.read_bytes(), chosen.model.stem
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        repository = folder / "models"
        build(BuildPlan(chosen.model, name, repository, "openvino"))
        [port, grpc_port] = free_ports(2)
        cluster = Cluster(True, head_node_args={"num_cpus": 4, "include_dashboard": False})
        server = start_server(repository, folder, ("--threads=1", "--log-access=false"))
        try:
            ray.init(cluster.address, namespace="serve", log_to_driver=False)
            url = f"http://127.0.0.1:{port}/v1/models/{name}/predict"
            settings = {"http_port": port, "grpc_port": grpc_port}
            found = {}
            for replicas in (1, 2):
                options = {"min_replicas": replicas, "max_replicas": replicas}
                config = {"repository": str(repository), "settings": settings}
                deploy(folder, cluster, {**config, "models": {name: options}})
                latency_ms(url, body, 20)
                measure: dict[str, Callable[[], float]] = {}
                of_serve = [psutil.Process(server.process.pid)]
                of_ray = set(psutil.Process().children(recursive=True)) - set(of_serve)
                for kind, where, processes in (
                    ("serve", server.predict_url(name), of_serve),
                    ("ray", url, sorted(of_ray, key=lambda each: each.pid)),
                ):
                    measure[f"{kind}_ms"] = partial(latency_ms, where, body, chosen.requests)
                    measure[f"{kind}_per_s"] = partial(throughput, where, body, 4, chosen.requests)
                    measure[f"{kind}_cpu_ms"] = partial(
                        cpu_ms, processes, where, body, chosen.requests
                    )
                found[f"{replicas} replicas"] = rounds(measure, chosen.rounds)
            print(json.dumps(found, indent=1))
        finally:
            server.stop()
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main()
