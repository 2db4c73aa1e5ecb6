"""The cost of a shadow for those whom the server answers, and whether its figures are right.

    python benchmarks/shadow.py REPOSITORY MODEL CANDIDATE --images DIR [--pairs 5] [--json FILE]

The newest version of the model answers; CANDIDATE is the number of another one in its folder. Two
servers are never compared: one server has the candidate in some turns and in others not, in turn,
at half of the rate that it reaches with four clients, in requests at the same random times. A p99
varies by half between turns of 30 s alone, so the mean of the pairs' ratios (of their logarithms)
has its interval of 95 % beside it. Then each image is sent once, with conf=0.2, and what the report
counts is held against `compare_engines`, the agreement of a build, computed without a server.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from fovea_engines.build.acceptance import compare_engines
from fovea_engines.device import processor_name
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import image_files
from fovea_server.bench.server_process import ServerProcess

PERCENTILES = ("p50", "p99")
_IMAGES = 64
_LONG = 1_000_000
_PROGRAM = "from fovea_server.cli.main import main; main()"


class Bench:
    """A server with the model."""

    def __init__(self, url: str, model: str, images: Path) -> None:
        self._url, self._model, self._images = url, model, images
        self._http = httpx.Client(base_url=url, timeout=60)
        self._path = f"/v1/models/{model}"

    def load(self, seconds: float, *flags: str) -> dict[str, Any]:
        """Measure a level of load."""
        command = [sys.executable, "-c", _PROGRAM, "bench", self._model]
        command += ["--url", self._url, "--images", str(self._images), "--seconds", str(seconds)]
        done = subprocess.run([*command, *flags, "--json"], check=True, capture_output=True)
        [level] = json.loads(done.stdout)["levels"]
        found: dict[str, Any] = level
        return found

    def begin(self, candidate: int, share: float, images: int = _LONG) -> None:
        """Begin a shadow, and wait until it runs."""
        asked = {"version": candidate, "share": share, "images": images}
        self._http.put(f"{self._path}/shadow", json=asked).raise_for_status()
        while (state := self.shadow()["state"]) == "starting":
            time.sleep(0.1)
        assert state == "running", self.shadow()["reason"]

    def shadow(self) -> dict[str, Any]:
        """Read how the shadow is."""
        found: dict[str, Any] = self._http.get(f"{self._path}/shadow").json()
        return found

    def end(self) -> dict[str, Any]:
        """Stop the shadow."""
        found: dict[str, Any] = self._http.delete(f"{self._path}/shadow").json()
        return found

    def send(self, image: Path) -> None:
        """Send an image, and wait until the candidate has answered it, too."""
        before = (self.shadow()["report"] or {"images": 0})["images"]
        url = f"{self._path}/predict?conf=0.2"
        self._http.post(url, content=image.read_bytes()).raise_for_status()
        while (self.shadow()["report"] or {"images": 0})["images"] == before:
            time.sleep(0.05)


def paired(bench: Bench, candidate: int, share: float, pairs: int, seconds: float) -> Any:
    """Measure turns with and without a candidate."""
    most = bench.load(seconds, "--clients", "4")["rate"]
    rate = f"{most / 2:.1f}"
    rows = []
    for number in range(pairs):
        row: dict[str, Any] = {}
        for turn in ("without", "with")[:: 1 if number % 2 else -1]:
            if turn == "with":
                bench.begin(candidate, share)
            level = bench.load(seconds, "--rate", rate)
            assert level["latency_ms"]["p99"], "a p99 takes 100 answers: give more --seconds"
            row[turn] = {key: level["latency_ms"][key] for key in PERCENTILES}
            if turn == "with":
                ended = bench.end()
                row["compared"] = (ended["report"] or {"images": 0})["images"]
                row["skipped"] = ended["skipped"]
        print(row, flush=True)
        rows.append(row)
    ratios = {
        key: _mean([row["with"][key] / row["without"][key] for row in rows]) for key in PERCENTILES
    }
    return {"rate": float(rate), "share": share, "seconds": seconds, "pairs": rows, "ratio": ratios}


def _mean(ratios: list[float]) -> dict[str, float]:
    logs = np.log(ratios)
    half = 1.96 * logs.std(ddof=1) / len(ratios) ** 0.5
    ends = {"mean": logs.mean(), "low": logs.mean() - half, "high": logs.mean() + half}
    return {name: round(float(np.exp(end)), 3) for name, end in ends.items()}


def agreed(bench: Bench, folder: Path, candidate: int, images: Path) -> dict[str, Any]:
    """Compare the figures of a report with those of engines that are opened here."""
    files = image_files(images, _IMAGES)
    live = max(int(each.name) for each in folder.iterdir() if each.name.isdigit())
    with Engine.open(folder / str(live)) as one, Engine.open(folder / str(candidate)) as other:
        want = compare_engines(one, other, images)
    bench.begin(candidate, 1.0, len(files))
    for file in files:
        bench.send(file)
    figures = bench.shadow()["report"]
    return {
        "images": len(files),
        "report": {key: figures["all"][key] for key in ("missed", "extra", "overlap")},
        "agreement": {"missed": want.missed, "extra": want.extra, "overlap": want.mean_iou},
        "disagreement": figures["disagreement"],
        "interval": figures["interval"],
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("repository", type=Path)
    parser.add_argument("model")
    parser.add_argument("candidate", type=int)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--pairs", type=int, default=5, help="two or more; 0: only the figures")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each turn")
    parser.add_argument("--json", type=Path, help="write the figures")
    given = parser.parse_args()
    with ServerProcess(given.repository, given.model) as server:
        bench = Bench(server.url, given.model, given.images)
        found = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{processor_name()}, {os.cpu_count()} cores, {platform.system()}",
            "model": given.model,
            "figures": agreed(bench, given.repository / given.model, given.candidate, given.images),
        }
        if given.pairs:
            found["cost"] = paired(bench, given.candidate, given.share, given.pairs, given.seconds)
    text = json.dumps(found, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
