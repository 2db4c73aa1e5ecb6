"""Train the detector on images of one's own: `python -m tools.demo_models.finetune --help`."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from tools.demo_models.export import SIDE, save_detector
from tools.demo_models.loss import detection_loss
from tools.demo_models.network import grid
from tools.demo_models.pool import NOTHING, PAD, Batch
from tools.demo_models.train import MovingAverage, augment
from tools.demo_models.weights import trained_detector

BATCH, RATE, WARM_UP = 8, 1e-3, 10


def read(folder: Path) -> Batch:
    """Read images/ and labels/ as YOLO's trainers do: ``class cx cy w h``, shares of the image."""
    files = sorted((folder / "images").iterdir())
    texts = [(folder / "labels" / f"{file.stem}.txt").read_text() for file in files]
    lines = [np.array(text.split(), np.float32).reshape(-1, 5) for text in texts]
    most = max(map(len, lines))
    pixels = np.full((len(files), SIDE, SIDE, 3), PAD, np.uint8)
    boxes = np.zeros((len(files), most, 4), np.float32)
    labels = np.full((len(files), most), NOTHING, np.int64)
    for index, (file, rows) in enumerate(zip(files, lines, strict=True)):
        pixels[index], boxes[index, : len(rows)] = _letterboxed(file, rows[:, 1:])
        labels[index, : len(rows)] = rows[:, 0]
    nothing = torch.zeros(len(files), 0)
    given = (torch.from_numpy(each) for each in (pixels, boxes, labels))
    return Batch(*given, nothing, nothing)


def _letterboxed(
    file: Path, shares: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    image = Image.open(file).convert("RGB")
    scale = SIDE / max(image.size)
    size = np.array([round(side * scale) for side in image.size])
    left, top = (SIDE - size) // 2
    canvas = Image.new("RGB", (SIDE, SIDE), (PAD,) * 3)
    canvas.paste(image.resize(tuple(size.tolist()), Image.Resampling.BILINEAR), (left, top))
    centres, halves = shares[:, :2] * size + (left, top), shares[:, 2:] * size / 2
    return np.asarray(canvas), np.concatenate((centres - halves, centres + halves), axis=1)


def train(model: nn.Module, data: Batch, steps: int, seed: int) -> nn.Module:
    """Return the moving average of a network that goes on with `data`."""
    torch.manual_seed(seed)
    points, strides = grid(SIDE, SIDE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=steps, pct_start=min(0.3, WARM_UP / steps)
    )
    average, noise = MovingAverage(model), torch.Generator().manual_seed(seed)
    for step, batch in zip(range(1, steps + 1), _batches(data, seed), strict=False):
        cost = detection_loss(model(augment(batch.pixels, noise)), batch, points, strides)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(cost)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        average.update(model)
        if step % 20 == 0 or step == steps:
            print(f"step {step:4d} of {steps}  loss {cost.item():.3f}", flush=True)
    return average.model


def _batches(data: Batch, seed: int) -> Iterator[Batch]:
    rng = np.random.default_rng(seed)
    while True:
        rows = torch.from_numpy(rng.choice(len(data.pixels), BATCH, replace=False))
        every = (data.pixels, data.boxes, data.labels, data.rotated, data.owners)
        yield Batch(*(each[rows] for each in every))


def main() -> None:
    """Read the command line, train, export."""
    parser = argparse.ArgumentParser(description="Train the demo's detector on your own images.")
    parser.add_argument("detector", type=Path, help="ONNX file to begin with")
    parser.add_argument("data", type=Path, help="folder with images/ and labels/, as YOLO has them")
    parser.add_argument("target", type=Path, help="the ONNX file to write")
    parser.add_argument("--steps", type=int, default=200, help="of 8 images")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    model = trained_detector(options.detector).requires_grad_(True).train()
    save_detector(train(model, read(options.data), options.steps, options.seed), options.target)


if __name__ == "__main__":
    main()
