"""Cameras beside clients with images: the age of answers, and the rate that images keep.

    python benchmarks/streams.py [MODEL.onnx] [--streams 8] [--fps 5] [--rounds 3] [--json FILE]

Two clients send images without pause, alone and beside the streams in turn, to a server that may
use two cores. Cameras and clients are processes of the same machine. The limits: the 99th
percentile of ages under 400 ms; 40 % of the images that there are without streams; SIGTERM under
full load ends the server within 5 s. Memory is that of the first round, and of the last. On a
machine that is busy otherwise, `age_p99_images` counts: ages in times of an image alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from http_load import http_load
from serve import MODEL, free_ports, start_server

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name
from fovea_server.bench.requests import image_requests
from fovea_server.bench.target import Target

SHARED = Path(__file__).resolve().parents[2] / "shared"
LIMITS = {"age_p99_ms": 400.0, "images_share": 0.4, "stop_s": 5.0}
SWITCHES = {
    "FOVEA_ALLOW_URL": "true",
    "FOVEA_URL_ALLOW_PRIVATE": "true",
    "FOVEA_LOG_ACCESS": "false",
}


def cameras(port: int, images: Sequence[bytes], fps: float) -> None:
    """Serve MJPEG on every path, for a process of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            due, path = time.monotonic(), int(self.path[1:])
            with suppress(OSError):
                for image in itertools.islice(itertools.cycle(images), path, None):
                    head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(image)}"
                    self.wfile.write(f"{head}\r\n\r\n".encode() + image + b"\r\n")
                    due += 1 / fps
                    time.sleep(max(0.0, due - time.monotonic()))

        def log_message(self, *_: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


@contextmanager
def running_cameras(images: Sequence[bytes], fps: float) -> Iterator[int]:
    """Run the cameras; yields their port."""
    (port,) = free_ports(1)
    process = multiprocessing.get_context("spawn").Process(
        target=cameras, args=(port, images, fps), daemon=True
    )
    process.start()
    try:
        yield port
    finally:
        process.kill()
        process.join()


class Ages(threading.Thread):
    """Asks for the ages of answers, often enough to miss none, until it is stopped."""

    def __init__(self, url: str, fps: float) -> None:
        super().__init__(daemon=True)
        self.ages: list[float] = []
        self.stopped = threading.Event()
        self._url, self._wait_s = url, 0.4 / fps

    def run(self) -> None:
        """Ask."""
        seen: dict[str, int] = {}
        with httpx.Client(timeout=60) as client:
            while not self.stopped.wait(self._wait_s):
                for each in client.get(self._url).json()["streams"]:
                    answered = each["frames"]["answered"]
                    if answered > seen.get(each["id"], 0):
                        seen[each["id"]] = answered
                        self.ages.append(each["age_ms"])


def streams_of(client: httpx.Client) -> list[dict[str, Any]]:
    """List the streams."""
    found: list[dict[str, Any]] = client.get("/v1/streams").json()["streams"]
    return found


def switch(client: httpx.Client, file: Path, text: str, count: int) -> None:
    """Write streams.toml, and wait until so many streams are live."""
    file.write_text(text)
    until = time.monotonic() + 120
    while True:
        states = [each["state"] for each in streams_of(client)]
        if states == ["live"] * count:
            return
        if time.monotonic() > until:
            raise SystemExit(f"the streams are {states}")
        time.sleep(0.2)


def stopped_after(server: psutil.Popen, requests: Sequence[bytes], port: int) -> float:
    """Send SIGTERM under load; the seconds until the server has ended."""

    def ask() -> None:
        with suppress(SystemExit, OSError):
            http_load(port, requests, 2, 3.0)

    load = threading.Thread(target=ask, daemon=True)
    load.start()
    time.sleep(1.0)
    began = time.monotonic()
    server.send_signal(signal.SIGTERM)
    server.wait(60)
    return time.monotonic() - began


def measure(arguments: argparse.Namespace, repository: Path, images: list[bytes]) -> dict[str, Any]:
    """Rounds of images alone, and beside the streams."""
    server, port, _ = start_server(repository, images[0], SWITCHES)
    process = psutil.Process(server.pid)
    process.cpu_affinity(sorted(os.sched_getaffinity(0))[:2])
    requests = image_requests(Target(f"http://127.0.0.1:{port}", MODEL, None), images)
    rows: list[dict[str, float]] = []
    file, url = repository / "streams.toml", f"http://127.0.0.1:{port}"
    try:
        with (
            running_cameras(images, arguments.fps) as camera_port,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            text = "\n".join(
                f'[s{number}]\nsource = "http://127.0.0.1:{camera_port}/{number}"\n'
                f'model = "{MODEL}"\ntrack = "bytetrack"\nlines = ["door=0.5,0,0.5,1"]'
                for number in range(arguments.streams)
            )
            for number in range(arguments.rounds):
                switch(client, file, "", 0)
                alone = http_load(port, requests, arguments.clients, arguments.seconds)
                switch(client, file, text, arguments.streams)
                before = {each["id"]: each["frames"] for each in streams_of(client)}
                ages = Ages(f"{url}/v1/streams", arguments.fps)
                ages.start()
                beside = http_load(port, requests, arguments.clients, arguments.seconds)
                ages.stopped.set()
                ages.join()
                after = {each["id"]: each["frames"] for each in streams_of(client)}
                grown = {
                    key: sum(after[name][key] - before[name][key] for name in after)
                    for key in ("answered", "dropped", "refused")
                }
                p50, p99 = np.percentile(ages.ages, (50, 99))
                rows.append(
                    {
                        "images_alone": round(alone.rate, 1),
                        "images_beside": round(beside.rate, 1),
                        "images_share": round(beside.rate / alone.rate, 3),
                        "frames": round(grown["answered"] / arguments.seconds, 1),
                        "dropped": grown["dropped"],
                        "refused": grown["refused"],
                        "age_p50_ms": round(float(p50), 1),
                        "age_p99_ms": round(float(p99), 1),
                        # The time that an image takes alone, by which a busy machine cancels out.
                        "age_p99_images": round(
                            float(p99) * alone.rate / arguments.clients / 1e3, 2
                        ),
                        "rss_mb": round(process.memory_info().rss / 1e6, 1),
                    }
                )
                print(f"round {number + 1}:", rows[-1], flush=True)
            stop_s = stopped_after(server, requests, port)
    finally:
        server.kill()
    return {"rounds": rows, "stop_s": round(stop_s, 2)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = SHARED / "models" / "yolox_nano.onnx"
    parser.add_argument("model", type=Path, nargs="?", default=default)
    parser.add_argument("--images", type=Path, default=SHARED / "data" / "coco64" / "val")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--fps", type=float, default=5.0, help="frames/s of each camera")
    parser.add_argument("--clients", type=int, default=2, help="that send images")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of one burst")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    images = [path.read_bytes() for path in sorted(arguments.images.glob("*.jpg"))]
    with tempfile.TemporaryDirectory() as folder:
        build(BuildPlan(arguments.model, MODEL, Path(folder, "repository")))
        report = measure(arguments, Path(folder, "repository"), images)
    rounds = report["rounds"]
    figures = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
    figures |= {"rss_grown_mb": round(rounds[-1]["rss_mb"] - rounds[0]["rss_mb"], 1)}
    figures |= {"stop_s": report["stop_s"]}
    for key, value in figures.items():
        limit = f"   (limit {LIMITS[key]:g})" if key in LIMITS else ""
        print(f"{key:14} {value:9.3f}{limit}")
    if arguments.json:
        about = {
            "model": arguments.model.name,
            "streams": arguments.streams,
            "fps": arguments.fps,
            "clients": arguments.clients,
            "seconds": arguments.seconds,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores",
        }
        text = json.dumps({**about, "limits": LIMITS, "medians": figures, **report}, indent=1)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
