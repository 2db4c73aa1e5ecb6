"""Compares Fovea with other servers: the same model, images, runtime and load, in turn.

    python benchmarks/peers.py [--rounds 3] [--seconds 5] [--json FILE]

The peers are programs of `peer_servers/`, written as their documentation shows it, around one plain
detector of ONNX Runtime in FP32. Each has a virtual environment of its own in `.venv/peers`, which
the first run makes with pip. "x2" has a process a core, with one thread each; without it, an image
has all cores. All servers are up at the same time, and are asked in turn. A ratio is that to Fovea
in the same round. CPU time and memory are those of all processes of a server, memory in shares of
what they share (PSS).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import orjson
import psutil
from http_load import http_load
from serve import COCO, MODEL, start_server
from tables import peers

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_engines.progress import ConsoleProgress
from fovea_server.bench.requests import image_requests
from fovea_server.bench.server_process import free_port
from fovea_server.bench.target import Target

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = Path(sys.prefix) / "peers"
MODELS = HERE.parents[1] / "shared" / "models"
FOVEA = "Fovea"
# Python 3.11.7 with later fixes of its library: the interpreter that PyTriton brings is older, and
# has no such method.
_PYTRITON = """import threading
if not hasattr(threading.RLock(), "_recursion_count"):
    threading.RLock = threading._PyRLock
"""


@dataclass(frozen=True)
class Peer:
    """A server of other people.

    Attributes:
        requirement: the package of PyPI with the server, and its version.
        command: after the interpreter; {port} and {processes} are filled in.
        processes: with a model each; None for one a core.
        v2: it takes the v2 protocol, and not uploads.
    """

    requirement: str
    command: Sequence[str]
    processes: int | None = None
    v2: bool = False

    @property
    def package(self) -> str:
        """The name of the package."""
        return self.requirement.partition("==")[0]

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ENVIRONMENTS / self.package / "bin" / "python"


FASTAPI = ("fastapi_server.py", "{port}", "{processes}")
TRITON = ("pytriton_server.py", "{port}", "{processes}")
BENTO = ("-m", "bentoml", "serve", "bentoml_server:Peer", "--host=127.0.0.1", "--port={port}")
PEERS = {
    # A second instance of PyTriton's does not start: it waits for a socket that nobody makes.
    "Triton, Python": Peer("nvidia-pytriton==0.7.0", TRITON, processes=1, v2=True),
    "FastAPI": Peer("fastapi==0.165.0", FASTAPI, processes=1),
    "FastAPI x2": Peer("fastapi==0.165.0", FASTAPI),
    "LitServe x2": Peer("litserve==0.2.19", ("litserve_server.py", "{port}", "{processes}")),
    "BentoML x2": Peer("bentoml==1.4.40", BENTO),
}


@dataclass
class Bursts:
    """The bursts of one server and one number of clients, a round each."""

    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)


def prepare(peer: Peer) -> None:
    """Make the environment of a peer where there is none."""
    folder = peer.python.parents[1]
    wanted = [peer.requirement, f"onnxruntime=={version('onnxruntime')}"]
    # PyTriton and the newest OpenCV want different versions of numpy.
    wanted += ["opencv-python-headless", "python-multipart", "uvicorn[standard]"]
    ready = folder / "ready"
    if ready.exists() and ready.read_text().split() == wanted:
        return
    print(f"installing {peer.requirement} in {folder}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [peer.python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True)
    if peer.v2:
        [site] = folder.glob("lib/python*/site-packages")
        (site / "sitecustomize.py").write_text(_PYTRITON)
    ready.write_text("\n".join(wanted))


def start(peer: Peer, model: Path, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a peer; returns its process and its port."""
    port, processes = free_port(), peer.processes or usable_cores()
    words = [word.format(port=port, processes=processes) for word in peer.command]
    settings = {
        "PEER_MODEL": str(model),
        "PEER_THREADS": "0" if processes == 1 else "1",
        "PEER_PROCESSES": str(processes),
        "BENTOML_DO_NOT_TRACK": "True",
        "PATH": f"{peer.python.parent}:{os.environ['PATH']}",
    }
    with log.open("w") as out:
        server = subprocess.Popen(
            [peer.python, *words],
            cwd=HERE / "peer_servers",
            env=os.environ | settings,
            stdout=out,
            stderr=out,
            process_group=0,
        )
    return server, port


def upload(image: bytes) -> bytes:
    """An HTTP request with a form that holds an image."""
    part = 'Content-Disposition: form-data; name="image"; filename="image.jpg"'
    head = f"--peer\r\n{part}\r\nContent-Type: image/jpeg\r\n\r\n".encode()
    body = head + image + b"\r\n--peer--\r\n"
    kind = "Content-Type: multipart/form-data; boundary=peer"
    return _post("/predict", kind, body)


def tensor(image: bytes) -> bytes:
    """An HTTP request of the v2 protocol with the bytes of an image."""
    raw = struct.pack("<I", len(image)) + image
    size = {"binary_data_size": len(raw)}
    described = {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": size}
    head = orjson.dumps({"inputs": [described], "parameters": {"binary_data_output": True}})
    kind = f"Inference-Header-Content-Length: {len(head)}"
    return _post(f"/v2/models/{MODEL}/infer", kind, head + raw)


def _post(path: str, line: str, body: bytes) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", line, f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def wait(port: int, request: bytes, server: subprocess.Popen[bytes], log: Path) -> int:
    """Ask until there is an answer; returns the number of boxes in it; RuntimeError if none."""
    end = time.monotonic() + 180
    while time.monotonic() < end and server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=30) as line:
            line.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            answer = b"".join(iter(lambda line=line: line.recv(65536), b""))
            if b" 200 " in answer[:16]:
                return answer.count(b'"score"')
        time.sleep(0.2)
    raise RuntimeError(f"it does not answer:\n{log.read_text()[-2000:]}")


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_s(pid: int) -> float:
    """CPU time of a tree, seconds."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def memory_mb(pid: int) -> float:
    """Memory of a tree; pages that several processes have count once."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return 1e-6 * total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODELS / "yolov8n.onnx")
    parser.add_argument("--images", type=Path, default=COCO / "val")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one burst")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    # Also then the servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    model = arguments.model.absolute()
    images = [path.read_bytes() for path in sorted(arguments.images.glob("*.jpg"))]
    for peer in PEERS.values():
        prepare(peer)
    servers: dict[str, tuple[int, int, list[bytes]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        build(BuildPlan(model, MODEL, folder / "models", "onnxruntime"), ConsoleProgress())
        own, port, _ = start_server(folder / "models", images[0], {"FOVEA_LOG_ACCESS": "0"})
        stack.callback(stop, own)
        requests = image_requests(Target(f"http://127.0.0.1:{port}", MODEL, None), images)
        servers[FOVEA] = own.pid, port, requests
        found = {FOVEA: wait(port, requests[0], own, folder / f"{FOVEA}.log")}
        for name, peer in PEERS.items():
            log = folder / f"{name}.log"
            server, port = start(peer, model, log)
            stack.callback(stop, server)
            requests = [(tensor if peer.v2 else upload)(image) for image in images]
            servers[name] = server.pid, port, requests
            try:
                found[name] = wait(port, requests[0], server, log)
            except RuntimeError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                del servers[name]
        if max(found.values()) - min(found.values()) > 1:
            raise SystemExit(f"the servers do not find the same: {found}")
        figures = {name: {str(n): Bursts() for n in arguments.clients} for name in servers}
        for number in range(arguments.rounds + 1):
            for clients in arguments.clients:
                for name, (pid, port, requests) in servers.items():
                    before = cpu_s(pid)
                    load = http_load(port, requests, clients, arguments.seconds)
                    if not number:
                        continue  # the first round warms all of them up
                    bursts = figures[name][str(clients)]
                    bursts.rates.append(load.rate)
                    bursts.p50_ms.append(load.p50_ms)
                    bursts.p99_ms.append(load.p99_ms)
                    bursts.cpu_ms.append(1e3 * (cpu_s(pid) - before) / load.requests)
                    bursts.memory_mb.append(memory_mb(pid))
    measured = {
        name: {n: vars(bursts) for n, bursts in loads.items()} for name, loads in figures.items()
    }
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}",
        "model": model.name,
        "onnxruntime": version("onnxruntime"),
        "versions": sorted({peer.requirement for peer in PEERS.values()}),
        "servers": measured,
    }
    print(f"{model.name}; {report['machine']}; {report['date']}; {report['versions']}\n")
    print(peers(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Stop a server and all of its processes."""
    left = tree(server.pid) if server.poll() is None else []
    server.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(left, timeout=20)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()


if __name__ == "__main__":
    main()
