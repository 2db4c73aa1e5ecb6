"""Scenes that the demo was not trained for: dark, with small digits, and their truth."""

from pathlib import Path

import cv2
import numpy as np
from tools.demo_models.scenes import CLASS_NAMES, Layout, Scene, compose

LAYOUT = Layout(640, 480, digits=(4, 9), sizes=(0.04, 0.12))
SEED = 5_000_000


def scene(number: int, split: str) -> tuple[bytes, Scene]:
    """A PNG file, and what is on it; the same for the same number."""
    made, rng = compose(SEED + number, split, LAYOUT), np.random.default_rng(number)
    pixels = made.pixels * rng.uniform(0.2, 0.4) + rng.normal(0, 4, made.pixels.shape)
    dark = np.clip(pixels, 0, 255).astype(np.uint8)
    return cv2.imencode(".png", dark[..., ::-1])[1].tobytes(), made


def lines(made: Scene) -> str:
    """Its digits as YOLO's trainers read them."""
    size = np.array(made.pixels.shape[1::-1] * 2)
    (left, right) = np.split(made.boxes, 2, axis=1)
    rows = np.concatenate([(left + right) / 2, right - left], axis=1) / size
    return "".join(
        f"{label} {' '.join(f'{value:.6f}' for value in row)}\n"
        for label, row in zip(made.labels, rows, strict=True)
    )


def write_labelled(folder: Path, numbers: range) -> None:
    """Write held-out scenes for `fovea eval`."""
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    (folder / "labels" / "classes.txt").write_text("\n".join(CLASS_NAMES) + "\n")
    for number in numbers:
        png, made = scene(number, "heldout")
        (folder / "images" / f"{number}.png").write_bytes(png)
        (folder / "labels" / f"{number}.txt").write_text(lines(made))
