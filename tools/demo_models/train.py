"""Train a demo model: `python -m tools.demo_models.train --help`."""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from tools.demo_models.classifier import DigitClassifier, classification_loss
from tools.demo_models.loss import choose, detection_loss
from tools.demo_models.matching import matching_loss
from tools.demo_models.network import DigitDetector, grid
from tools.demo_models.pool import SIDE, Batch, ScenePool
from tools.demo_models.tasks import TASKS
from tools.demo_models.transformer import DigitTransformer, Found
from tools.demo_models.weights import trained_detector
from tools.demo_models.workers import Workers

Loss = Callable[[Tensor, Batch], Tensor]
"""Weighs what is wrong on images [batch, 3, side, side]."""

WARM_UP = 100
WEIGHT_DECAY = 0.02
SMOOTHING = 0.995


class MovingAverage:
    """A slow copy of the network; this is the one that is kept."""

    def __init__(self, model: nn.Module) -> None:
        self.model = deepcopy(model).eval().requires_grad_(False)
        self.updates = 0

    def update(self, model: nn.Module) -> None:
        """Move a small step towards the trained network."""
        self.updates += 1
        keep = SMOOTHING * (1.0 - math.exp(-self.updates / 150))
        fresh = model.state_dict()
        for name, slow in self.model.state_dict().items():
            if slow.dtype.is_floating_point:
                slow.lerp_(fresh[name], 1.0 - keep)
            else:
                slow.copy_(fresh[name])


def losses(tasks: list[str], detector: Path | None) -> tuple[nn.Module, Loss]:
    """Return the network that is trained for tasks, and its loss.

    All but detect begin with a finished detector. What segment, pose and obb add to it is trained
    while it stays as it is, so that one look at an image serves all of them.
    """
    points, strides = grid(SIDE, SIDE)
    if tasks == ["detect"]:
        model = DigitDetector()
        return model, lambda images, batch: detection_loss(model(images), batch, points, strides)
    if detector is None:
        raise SystemExit("only detect is trained from nothing: name its ONNX file with --detector")
    frozen = trained_detector(detector)
    if tasks == ["classify"]:
        classifier = DigitClassifier(frozen)
        return classifier, lambda images, batch: classification_loss(classifier, images, batch)
    if tasks == ["transformer"]:
        transformer = DigitTransformer(frozen)
        return transformer, lambda images, batch: _transformer_loss(transformer, images, batch)
    if not {*tasks} <= {"segment", "pose", "obb"}:
        raise SystemExit("segment, pose and obb can be trained together, the others alone")
    added = {task: TASKS[task]() for task in tasks}
    for task in added.values():
        task.begin(frozen)

    def loss(images: Tensor, batch: Batch) -> Tensor:
        with torch.no_grad():
            seen = frozen(images)
        _, chosen = choose(seen, batch, points, strides)
        return torch.stack([task.loss(seen, chosen, batch) for task in added.values()]).sum()

    return nn.ModuleDict(added), loss


def _transformer_loss(model: DigitTransformer, images: Tensor, batch: Batch) -> Tensor:
    # Its products are many, and quicker in bfloat16 where the processor has AMX.
    with torch.autocast("cpu", torch.bfloat16):
        found = model(images)
    return matching_loss([Found(one.logits.float(), one.boxes.float()) for one in found], batch)


def train(
    model: nn.Module,
    loss: Loss,
    batches: Iterator[Batch],
    minutes: float,
    rate: float,
    out: Path,
    workers: Workers,
) -> None:
    """Train until the time is up; every 50th step leaves a file that can be exported."""
    optimizer = torch.optim.AdamW(_groups(model), lr=rate, betas=(0.9, 0.99))
    average, noise = MovingAverage(model), torch.Generator().manual_seed(workers.rank)
    began, recent, step, done = time.monotonic(), 0.0, 0, 0.0
    while done < 1.0:
        step += 1
        for group in optimizer.param_groups:
            group["lr"] = rate * _share_of_rate(step, done)
        batch = next(batches)
        cost = loss(augment(batch.pixels, noise), batch)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(cost)
        done = workers.average(model, (time.monotonic() - began) / 60 / minutes)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        average.update(model)
        recent = cost.item() if step == 1 else 0.95 * recent + 0.05 * cost.item()
        if workers.first and (step % 50 == 0 or done >= 1.0):
            print(f"step {step:5d}  loss {recent:.3f}  {done:.0%} of {minutes} min", flush=True)
            torch.save(average.model.state_dict(), out)


def augment(pixels: Tensor, noise: torch.Generator) -> Tensor:
    """Change colours and light of a batch; shapes stay, as no digit may be mirrored."""
    images = pixels.permute(0, 3, 1, 2).to(torch.float32) / 255.0
    for index in range(len(images)):
        images[index] = images[index, torch.randperm(3, generator=noise)]
    count = (len(images), 1, 1, 1)
    inverted = torch.rand(count, generator=noise) < 0.2
    images = torch.where(inverted, 1.0 - images, images)
    gain = 0.7 + 0.5 * torch.rand(count, generator=noise)
    shift = 0.2 * (torch.rand(count, generator=noise) - 0.3)
    return (images * gain + shift).clamp(0.0, 1.0).to(memory_format=torch.channels_last)


def _groups(model: nn.Module) -> list[dict[str, object]]:
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": weights, "weight_decay": WEIGHT_DECAY},
        {"params": rest, "weight_decay": 0.0},
    ]


def _share_of_rate(step: int, done: float) -> float:
    # By time and not by steps: the rate reaches its end however busy the machine is.
    return min(1.0, step / WARM_UP) * (0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2)


def main() -> None:
    """Read the command line, compose, train."""
    parser = argparse.ArgumentParser(description="Train a demo model on a CPU.")
    kinds = [*TASKS, "classify", "transformer"]
    parser.add_argument("tasks", nargs="+", choices=kinds, metavar="TASK")
    parser.add_argument("--out", type=Path, required=True, help="file of weights to write")
    parser.add_argument("--pool", type=Path, required=True, help="folder for composed scenes")
    parser.add_argument("--scenes", type=int, default=10_000, help="training scenes to compose")
    parser.add_argument("--minutes", type=float, default=40.0, help="how long to train")
    parser.add_argument("--batch", type=int, default=8, help="scenes in a step")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--detector", type=Path, help="ONNX file that all others begin with")
    parser.add_argument("--weights", type=Path, help="weights of these tasks to go on from")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    pool = ScenePool(options.pool, options.scenes)
    pool.fill(torch.get_num_threads())
    workers = Workers()
    torch.manual_seed(options.seed)
    model, loss = losses(options.tasks, options.detector)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if options.weights:
        model.load_state_dict(torch.load(options.weights, weights_only=True))
    batches = pool.batches(options.batch // workers.count, options.seed + workers.rank)
    train(model, loss, batches, options.minutes, options.rate, options.out, workers)
    workers.close()


if __name__ == "__main__":
    main()
