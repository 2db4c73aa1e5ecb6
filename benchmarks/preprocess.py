"""How long decoding and letterboxing take, beside a plain copy of one row of the batch.

    python benchmarks/preprocess.py [IMAGE] [--size 640] [--rounds 60] [--json]

The image is IMAGE, encoded again in each format, or a made one of 1080x810. One thread. The
ratio to `memcpy` of a float32 row [3, size, size], timed in turn with each step, is what can be
compared between machines; milliseconds cannot.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fovea_preprocess.image import decode_image
from fovea_preprocess.preprocessor import Preprocessor
from fovea_preprocess.spec import PreprocessSpec


def made_image() -> NDArray[np.uint8]:
    """Smooth shapes with grain, RGB [1080, 810, 3]: compresses about as a photograph does."""
    rows, columns = np.mgrid[0:1080, 0:810]
    waves = np.stack([np.sin(rows / a) + np.cos(columns / a) for a in (80, 40, 9)], axis=-1)
    grain = np.random.default_rng(0).normal(0, 4, waves.shape)
    return np.clip(128 + 50 * waves + grain, 0, 255).astype(np.uint8)


def decoders(pixels: NDArray[np.uint8], original: bytes | None) -> dict[str, Callable[[], object]]:
    """One decoding of the image in every format; the file as it is for JPEG, where given."""
    steps: dict[str, Callable[[], object]] = {}
    for form in ("JPEG", "PNG", "WEBP", "BMP", "TIFF"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, form)
        data = original if form == "JPEG" and original else buffer.getvalue()
        steps[f"decode {form}"] = lambda data=data: decode_image(data)  # type: ignore[misc]
    return steps


def letterboxes(pixels: NDArray[np.uint8], size: int) -> dict[str, Callable[[], object]]:
    """The image into a row of every dtype and layout."""
    steps: dict[str, Callable[[], object]] = {}
    base = PreprocessSpec(size, size)
    for spec in (
        base,
        replace(base, layout="NHWC"),
        replace(base, dtype="float16"),
        replace(base, dtype="uint8"),
        replace(base, dtype="uint8", layout="NHWC"),
        replace(base, fit="center-crop"),
    ):
        preprocess, batch = Preprocessor(spec), np.zeros((2, *spec.row_shape), spec.dtype)
        name = f"{spec.fit} {spec.dtype} {spec.layout}"
        steps[name] = lambda p=preprocess, row=batch[1]: p(pixels, row)  # type: ignore[misc]
    return steps


def milliseconds(step: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def measure(step: Callable[[], object], size: int, rounds: int) -> dict[str, float]:
    """Best and median of a step, and the ratio of its best to the best copy of a row."""
    source, target = np.ones((2, 3, size, size), np.float32)
    step()
    pairs = [
        (milliseconds(step), milliseconds(lambda: np.copyto(target, source))) for _ in range(rounds)
    ]
    times, copies = zip(*pairs, strict=True)
    return {
        "best_ms": round(min(times), 3),
        "median_ms": round(statistics.median(times), 3),
        "copies": round(min(times) / min(copies), 2),
    }


def main() -> None:
    """Measures every step and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("image", nargs="?", type=Path, help="an image file")
    parser.add_argument("--size", type=int, default=640, help="side of the input, pixels")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    original = arguments.image.read_bytes() if arguments.image else None
    pixels = decode_image(original).pixels if original else made_image()
    steps = decoders(pixels, original) | letterboxes(pixels, arguments.size)
    results = {
        name: measure(step, arguments.size, arguments.rounds) for name, step in steps.items()
    }
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'':28}{'best ms':>10}{'median':>10}{'x memcpy':>10}")
    for name, row in results.items():
        print(f"{name:28}{row['best_ms']:10.3f}{row['median_ms']:10.3f}{row['copies']:10.2f}")


if __name__ == "__main__":
    main()
