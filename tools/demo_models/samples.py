"""The images that ship with the package: `python -m tools.demo_models.samples --help`."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from PIL import Image

from tools.demo_models.plates import SAMPLE, draw
from tools.demo_models.scenes import CLASS_NAMES, Layout, Scene, compose

# Apart from the seeds that are measured. Chosen among forty, on photographs in the public domain,
# because the detector finds every digit in them: they show it at work and measure nothing.
SEEDS = {"scene-1.jpg": 2_000_027, "scene-2.jpg": 2_000_019}
LAYOUT = Layout(
    640, 480, digits=(6, 9), sizes=(0.08, 0.3), clutter=1, zoom=(1.0, 1.15), degrade=False
)
# For the classifier: one digit, which fills the image.
DIGIT = "digit.jpg"
DIGIT_SEED = 2_000_106
DIGIT_LAYOUT = replace(
    LAYOUT, width=320, height=320, digits=(1, 1), sizes=(0.74, 0.82), clutter=0, zoom=(1.0, 1.6)
)
PLATE = "plate.jpg"


def sample(name: str) -> Scene:
    """Compose one of them again."""
    if name == DIGIT:
        return compose(DIGIT_SEED, "heldout", DIGIT_LAYOUT)
    return compose(SEEDS[name], "heldout", LAYOUT)


def truth(scene: Scene) -> list[dict[str, object]]:
    """List the digits of a scene as scenes.json has them."""
    return [
        {"class_name": CLASS_NAMES[label], "box": box}
        for label, box in zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True)
    ]


def main() -> None:
    """Write the images and their true boxes."""
    parser = argparse.ArgumentParser(description="Write the sample scenes and their true boxes.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    for name in (*SEEDS, DIGIT):
        Image.fromarray(sample(name).pixels).save(folder / name, quality=92)
    Image.fromarray(draw(SAMPLE).pixels).save(folder / PLATE, quality=92)
    boxes = {name: truth(sample(name)) for name in SEEDS}
    (folder / "scenes.json").write_text(json.dumps(boxes, indent=1) + "\n")


if __name__ == "__main__":
    main()
