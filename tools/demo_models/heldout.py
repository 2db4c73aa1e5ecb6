"""Writes held-out scenes with their truth: `python -m tools.demo_models.heldout --help`."""

import argparse
import json
from pathlib import Path

import numpy as np
from faster_coco_eval.core import mask as coco
from PIL import Image

from tools.demo_models.scenes import CLASS_NAMES, KEYPOINTS, Layout, Scene, compose

SCENES = 400
# Held-out scenes are seeded from here; the sample scenes from elsewhere.
FIRST_SEED = 1_000_000
LAYOUTS = (Layout(320, 320), Layout(480, 360), Layout(640, 480), Layout(360, 480))
# Share of a digit's longer side that its crop shows around it.
MARGIN = 0.15


def heldout_scenes(count: int = SCENES) -> list[Scene]:
    """Scenes of digits and photographs that training never sees."""
    layouts = [LAYOUTS[index % len(LAYOUTS)] for index in range(count)]
    return [compose(FIRST_SEED + i, "heldout", layout) for i, layout in enumerate(layouts)]


def coco_document(scenes: list[Scene]) -> dict[str, object]:
    """Return boxes, masks and keypoints of the digits, in COCO's format."""
    rows: list[dict[str, object]] = []
    for image, scene in enumerate(scenes):
        for digit, (x1, y1, x2, y2) in enumerate(scene.boxes.tolist()):
            ink = np.asfortranarray(scene.owners == digit + 1, np.uint8)
            mask = coco.encode(ink)
            points = scene.keypoints()[digit]
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": image,
                    "category_id": int(scene.labels[digit]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    # By which keypoints are judged: of the rectangle whose corners they are.
                    "area": float(scene.rotated[digit, 2:4].prod()),
                    "iscrowd": 0,
                    "segmentation": mask | {"counts": mask["counts"].decode()},
                    # 2: marked and visible.
                    "keypoints": [n for x, y in points.tolist() for n in (x, y, 2)],
                    "num_keypoints": len(KEYPOINTS),
                }
            )
    images = [
        {"id": i, "file_name": f"{i}.png", "height": len(s.pixels), "width": s.pixels.shape[1]}
        for i, s in enumerate(scenes)
    ]
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASS_NAMES)]
    return {"images": images, "annotations": rows, "categories": categories}


def yolo_lines(scene: Scene) -> str:
    """Return the class and corners of each digit, 0 to 1: YOLO's labels of rotated boxes.

    A corner that lies outside the image, as few do, is moved to its edge.
    """
    corners = scene.keypoints()[:, 1:] / scene.pixels.shape[1::-1]
    return "".join(
        f"{label} {' '.join(f'{value:.6f}' for value in row)}\n"
        for label, row in zip(scene.labels, corners.clip(0, 1).reshape(-1, 8).tolist(), strict=True)
    )


def crop(scene: Scene, digit: int) -> Image.Image:
    """Cut a square around a digit, within the image."""
    x1, y1, x2, y2 = scene.boxes[digit].tolist()
    height, width = scene.pixels.shape[:2]
    side = round(min(max(x2 - x1, y2 - y1) * (1 + 2 * MARGIN), height, width))
    left = round(min(max((x1 + x2 - side) / 2, 0), width - side))
    top = round(min(max((y1 + y2 - side) / 2, 0), height - side))
    return Image.fromarray(scene.pixels[top : top + side, left : left + side])


def main() -> None:
    """Write images, labels of every kind, and crops in a folder for each class."""
    parser = argparse.ArgumentParser(description="Write held-out scenes for `fovea eval`.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scenes", type=int, default=SCENES, help="how many")
    options = parser.parse_args()
    folder, scenes = options.folder, heldout_scenes(options.scenes)
    for name in ("images", "labels", *(f"crops/{name}" for name in CLASS_NAMES)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "coco.json").write_text(json.dumps(coco_document(scenes)))
    (folder / "labels" / "classes.txt").write_text("\n".join(CLASS_NAMES) + "\n")
    for number, scene in enumerate(scenes):
        Image.fromarray(scene.pixels).save(folder / "images" / f"{number}.png")
        (folder / "labels" / f"{number}.txt").write_text(yolo_lines(scene))
        for digit, label in enumerate(scene.labels.tolist()):
            crop(scene, digit).save(folder / "crops" / CLASS_NAMES[label] / f"{number}-{digit}.png")
    print(f"{len(scenes)} scenes, {sum(len(scene.labels) for scene in scenes)} digits")


if __name__ == "__main__":
    main()
