"""Train and export the demo model that reads plates: `python -m tools.demo_models.reader`."""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxslim
import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.demo_models.export import trace
from tools.demo_models.plates import CHARACTERS, HEIGHT, WIDTH, draw, fitted
from tools.demo_models.train import augment
from tools.demo_models.weights import halve

BATCH, RATE = 64, 3e-3
POOL = 200 * BATCH
HELDOUT = 5_000_000
"""From this seed on, plates are measured and never trained on."""


class PlateReader(nn.Module):
    """BGR, -1 to 1, to the probabilities of no character and of each, at 32 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Sequential(
            *_convolution(3, 24, 3, (2, 2)),
            *_convolution(24, 48, 3, (2, 2)),
            *_convolution(48, 80, 3, (2, 1)),
            *_convolution(80, 112, 3, (2, 1)),
            *_convolution(112, 128, (2, 3), (2, 1), (0, 1)),
            *_convolution(128, 128, (1, 5), (1, 1), (0, 2)),
        )
        self.said = nn.Conv2d(128, len(CHARACTERS) + 1, 1)

    def logits(self, images: Tensor) -> Tensor:
        """Return [batch, steps, characters]."""
        logits: Tensor = self.said(self.seen(images))
        return logits.squeeze(2).transpose(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Return the probabilities."""
        return self.logits(images).softmax(2)


def _convolution(
    before: int,
    after: int,
    kernel: int | tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int] = (1, 1),
) -> tuple[nn.Module, ...]:
    bare = nn.Conv2d(before, after, kernel, stride, pad, bias=False)
    return bare, nn.BatchNorm2d(after), nn.ReLU(inplace=True)


def drawn(seeds: range) -> tuple[Tensor, list[str]]:
    """Draw plates, uint8 [plates, 32, 128, 3], and return what is on them, too."""
    plates = [draw(seed) for seed in seeds]
    return torch.from_numpy(np.stack([fitted(each.pixels) for each in plates])), [
        each.text for each in plates
    ]


def train(steps: int, seed: int) -> PlateReader:
    """Train from nothing; a plate that comes again has other colours and another light."""
    noise = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    pixels, texts = drawn(range(POOL))
    order = torch.cat(
        [torch.randperm(POOL, generator=noise) for _ in range(0, steps * BATCH, POOL)]
    )
    model = PlateReader().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    recent = 0.0
    for step in range(1, steps + 1):
        rows = order[(step - 1) * BATCH : step * BATCH]
        wanted = [texts[row] for row in rows.tolist()]
        said = model.logits(augment(pixels[rows], noise) * 2 - 1).log_softmax(2).transpose(0, 1)
        ids = torch.tensor([CHARACTERS.index(each) + 1 for text in wanted for each in text])
        lengths = torch.tensor([len(text) for text in wanted])
        cost = functional.ctc_loss(said, ids, torch.full((BATCH,), len(said)), lengths)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(cost)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        recent = cost.item() if step == 1 else 0.95 * recent + 0.05 * cost.item()
        if step % 50 == 0:
            print(f"step {step:5d}  loss {recent:.3f}", flush=True)
    return model.eval()


def read(model: nn.Module, images: Tensor) -> list[str]:
    """Return the texts."""
    texts = []
    for best in model(images).argmax(2).tolist():
        kept = [each for at, each in enumerate(best) if each and (not at or best[at - 1] != each)]
        texts.append("".join(CHARACTERS[each - 1] for each in kept))
    return texts


def export(model: nn.Module, target: Path) -> None:
    """Trace, simplify, halve, describe, check, save."""
    traced = onnxslim.slim(trace(model, (HEIGHT, WIDTH), ("characters",)))
    del traced.graph.value_info[:]
    halve(traced)
    described = {
        "description": "Fovea demo model (read): drawn plates of vehicles",
        "author": "Fovea",
        "license": "Apache-2.0",
        "task": "read",
        "character": "\n".join(CHARACTERS),
    }
    onnx.helper.set_model_props(traced, described)
    onnx.checker.check_model(traced, full_check=True)
    onnx.save(traced, target)


def main() -> None:
    """Read the command line, train, measure, export."""
    parser = argparse.ArgumentParser(description="Train the reader of plates on one core.")
    parser.add_argument("target", type=Path, help="the ONNX file to write")
    parser.add_argument("--steps", type=int, default=1200, help="of 64 plates each")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = train(options.steps, options.seed)
    with torch.no_grad():
        pixels, texts = drawn(range(HELDOUT, HELDOUT + 1000))
        images = pixels.permute(0, 3, 1, 2) / 127.5 - 1
        right = sum(map(str.__eq__, read(model, images), texts))
    export(model, options.target)
    size = options.target.stat().st_size
    print(f"{right} of 1000 held-out plates are read to the last character; {size:,} bytes")


if __name__ == "__main__":
    main()
