"""Draw dark scenes with small digits: `python -m tools.demo_models.night --help`."""

import argparse
import shutil
from pathlib import Path

import cv2
import numpy as np

from tools.demo_models.glyphs import Split
from tools.demo_models.scenes import CLASS_NAMES, Layout, Scene, compose

LAYOUT = Layout(640, 480, digits=(4, 9), sizes=(0.04, 0.12))
SEED = 5_000_000
LIVE, JUDGED = 200, 100


def scene(number: int, split: Split) -> tuple[bytes, Scene]:
    """Return a PNG file and its scene; the same number gives the same scene."""
    made, rng = compose(SEED + number, split, LAYOUT), np.random.default_rng(number)
    pixels = made.pixels * rng.uniform(0.2, 0.4) + rng.normal(0, 4, made.pixels.shape)
    dark = np.clip(pixels, 0, 255).astype(np.uint8)
    return cv2.imencode(".png", dark[..., ::-1])[1].tobytes(), made


def lines(made: Scene) -> str:
    """Return the digits as YOLO labels: ``class cx cy w h``, shares of the image."""
    size = np.array(made.pixels.shape[1::-1] * 2)
    (left, right) = np.split(made.boxes, 2, axis=1)
    rows = np.concatenate([(left + right) / 2, right - left], axis=1) / size
    return "".join(
        f"{label} {' '.join(f'{value:.6f}' for value in row)}\n"
        for label, row in zip(made.labels, rows, strict=True)
    )


def write_labelled(folder: Path, numbers: range, split: Split) -> None:
    """Write scenes with labels, as `fovea eval` reads them."""
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    (folder / "labels" / "classes.txt").write_text("\n".join(CLASS_NAMES) + "\n")
    for number in numbers:
        png, made = scene(number, split)
        (folder / "images" / f"{number}.png").write_bytes(png)
        (folder / "labels" / f"{number}.txt").write_text(lines(made))


def correct_labels(exported: Path, labelled: Path) -> int:
    """Replace the labels of exported images by the true ones, and return their number."""
    labels = labelled / "labels"
    truth = {
        file.read_bytes(): labels / f"{file.stem}.txt" for file in (labelled / "images").iterdir()
    }
    images = list((exported / "images").iterdir())
    for image in images:
        shutil.copy(truth[image.read_bytes()], exported / "labels" / f"{image.stem}.txt")
    return len(images)


def main() -> None:
    """Read the command line, and write scenes or labels."""
    parser = argparse.ArgumentParser(description="Draw dark scenes with small digits.")
    parser.add_argument("folder", type=Path, help="folder for live/ and judged/")
    parser.add_argument("--correct", type=Path, help="write true labels into this export of live/")
    options = parser.parse_args()
    live, judged = options.folder / "live", options.folder / "judged"
    if options.correct is not None:
        print(f"{correct_labels(options.correct, live)} images labelled")
        return
    write_labelled(live, range(LIVE), "train")
    write_labelled(judged, range(JUDGED), "heldout")
    print(f"{LIVE} images in {live}, {JUDGED} in {judged}")


if __name__ == "__main__":
    main()
