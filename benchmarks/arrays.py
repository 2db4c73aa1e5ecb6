"""Time three ways to send an array of pixels: as BMP, as PNG, and as an input tensor over v2.

    python benchmarks/arrays.py URL MODEL PHOTOGRAPH [--megapixels 12] [--rounds 7] [--json FILE]

It asks a running server with the photograph, enlarged; the forms take turns. `gigabit_ms` adds the
time that the bytes take on a line of 1 Gbit/s. The tensor is letterboxed by the client, and its
answer is not decoded.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from fovea_client import Client
from fovea_client.images import encode_bmp
from fovea_client.png import write_rgb
from fovea_engines.device import processor_name
from fovea_engines.evaluation.samples import read_image
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec

BITS_PER_S = 1e9


def photograph(path: Path, megapixels: float) -> NDArray[np.uint8]:
    """Read a photograph, uint8 RGB, and enlarge it."""
    pixels = read_image(path)
    factor = (megapixels * 1e6 / pixels[..., 0].size) ** 0.5
    return np.ascontiguousarray(cv2.resize(pixels, None, fx=factor, fy=factor))


def forms(
    client: Client, model: str, pixels: NDArray[np.uint8]
) -> dict[str, Callable[[], tuple[float, float, int]]]:
    """Return a function for each form: seconds to make it and to ask with it, and its bytes."""
    described = client.model(model)
    assert described.preprocess is not None
    preprocessor = Preprocessor(PreprocessSpec(**described.preprocess))
    name = described.inputs[0].name

    def encoded(encode: Callable[[NDArray[np.uint8]], bytes]) -> tuple[float, float, int]:
        start = time.perf_counter()
        body = encode(pixels)
        made = time.perf_counter()
        client.predict(model, body)
        return made - start, time.perf_counter() - made, len(body)

    def tensor() -> tuple[float, float, int]:
        start = time.perf_counter()
        batch = np.empty((1, *preprocessor.spec.row_shape), preprocessor.spec.dtype)
        preprocessor(pixels, batch[0])
        made = time.perf_counter()
        client.infer(model, {name: batch})
        return made - start, time.perf_counter() - made, batch.nbytes

    return {"BMP": lambda: encoded(encode_bmp), "PNG": lambda: encoded(write_rgb), "tensor": tensor}


def main() -> None:
    """Print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("photograph", type=Path)
    parser.add_argument("--megapixels", type=float, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with Client(given.url, timeout=120) as client:
        ask = forms(client, given.model, photograph(given.photograph, given.megapixels))
        rounds = [{name: one() for name, one in ask.items()} for _ in range(given.rounds + 1)][1:]
    found = {}
    for name in ask:
        make, answer, size = zip(*(each[name] for each in rounds), strict=True)
        loopback = statistics.median(a + b for a, b in zip(make, answer, strict=True))
        found[name] = {
            "megabytes": round(size[0] / 1e6, 2),
            "encode_ms": round(statistics.median(make) * 1e3, 1),
            "loopback_ms": round(loopback * 1e3, 1),
            "gigabit_ms": round((loopback + size[0] * 8 / BITS_PER_S) * 1e3, 1),
        }
        print(name, found[name])
    if given.json:
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{processor_name()}, {platform.machine()}",
            "model": given.model,
            "megapixels": given.megapixels,
            "rounds": given.rounds,
        }
        given.json.write_text(json.dumps({**about, "forms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
