"""The rate of a server whose images are kept, over its rate while none is.

    PYTHONPATH=. python benchmarks/capture.py [MODEL.onnx] [--rule "rate 10%"] [--rounds 7]
        [--disk full|slow] [--json FILE]

One server keeps images. Clients ask it in turns with and without `X-Fovea-No-Capture`, so that the
two rates of a round are of the same process; the medians of the rounds' ratios tell. A full disk is
a file system of 256 KB, so that nearly every write fails, and a slow one takes a megabyte a second
(tests/slow_disk.py); both take root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from http_load import http_load
from tests.slow_disk import slow_disk

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.device import processor_name, usable_cores
from fovea_server.bench.server_process import ServerProcess

SHARED = Path(__file__).resolve().parents[2] / "shared"
NAME = "kept"
TURNS = {"kept": "", "not": "X-Fovea-No-Capture: 1\r\n"}


def requests(images: Path, header: str) -> list[bytes]:
    """Return a request for each image of a folder, as it goes over the wire."""
    made = []
    for path in sorted(images.glob("*.jpg")):
        body = path.read_bytes()
        head = (
            f"POST /v1/models/{NAME}/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n{header}\r\n"
        )
        made.append(head.encode() + body)
    return made


@contextmanager
def folder_of_captures(disk: str) -> Iterator[Path]:
    """Make a folder on a disk that is usual, full or slow."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if disk == "slow":
            mounted, throttle = stack.enter_context(slow_disk(Path(folder)))
            # What this process starts, the server too, writes as slowly.
            throttle(os.getpid())
            yield mounted
            return
        if disk == "full":
            mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "captures", folder]
            subprocess.run(mount, check=True)
            stack.callback(subprocess.run, ["umount", folder], check=True)
        yield Path(folder)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = SHARED / "models" / "yolox_nano.onnx"
    parser.add_argument("model", type=Path, nargs="?", default=default)
    parser.add_argument("--images", type=Path, default=SHARED / "data" / "coco64" / "val")
    parser.add_argument("--rule", default="rate 10%")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--disk", choices=("usual", "full", "slow"), default="usual")
    parser.add_argument("--json", type=Path, help="write the figures")
    given = parser.parse_args()
    asked = {turn: requests(given.images, header) for turn, header in TURNS.items()}
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as work, folder_of_captures(given.disk) as captures:
        build(BuildPlan(given.model, NAME, Path(work)))
        # The default of a minute is for people who label.
        rules = f'[capture]\nrules = ["{given.rule}"]\nper_minute = 1000000\n'
        (Path(work) / NAME / "fovea.toml").write_text(rules)
        with ServerProcess(Path(work), NAME, ["--capture", str(captures)]) as server:
            port = urlsplit(server.url).port or 0
            http_load(port, asked["kept"], given.clients, given.seconds)
            for number in range(given.rounds):
                found: dict[str, float] = {}
                for turn in [*TURNS][:: 1 if number % 2 else -1]:
                    load = http_load(port, asked[turn], given.clients, given.seconds)
                    found |= {f"{turn}_rate": load.rate, f"{turn}_p99_ms": load.p99_ms}
                rounds.append({key: round(value, 2) for key, value in found.items()})
                print(rounds[-1], flush=True)
        kept = sum(1 for _ in captures.rglob("predictions.json"))
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {usable_cores()} cores",
        "model": given.model.stem,
        "rule": given.rule,
        "clients": given.clients,
        "disk": given.disk,
        "kept": kept,
        "rounds": rounds,
        "rate_ratio": statistics.median(each["kept_rate"] / each["not_rate"] for each in rounds),
        "p99_ratio": statistics.median(each["kept_p99_ms"] / each["not_p99_ms"] for each in rounds),
    }
    print(f"rate x{report['rate_ratio']:.3f}, p99 x{report['p99_ratio']:.3f}, {kept} kept")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
