"""Training scenes composed once, kept on disk, and dealt in batches."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tools.demo_models.scenes import LARGEST, SMALLEST, Layout, Scene, compose

# Smaller than what is served, with digits of the same pixels: more digits for each operation.
SIDE = 256
MOST = 12
PAD = 114
NOTHING = -1

_SIZES = (SMALLEST * 320 / SIDE, LARGEST * 320 / SIDE)
SQUARE = Layout(SIDE, SIDE, digits=(2, MOST), sizes=_SIZES)
WIDE = replace(SQUARE, height=SIDE * 3 // 4)


@dataclass(frozen=True, slots=True)
class Batch:
    """Images with what `Scene` has of each; a label of `NOTHING` marks an empty row."""

    pixels: Tensor
    boxes: Tensor
    labels: Tensor
    rotated: Tensor
    owners: Tensor


class ScenePool:
    """Training scenes in one memory-mapped file, so that an epoch costs no composing."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pixels = _open(folder / f"pixels-{count}.npy", np.uint8, (count, SIDE, SIDE, 3))
        self.boxes = _open(folder / f"boxes-{count}.npy", np.float32, (count, MOST, 4))
        self.labels = _open(folder / f"labels-{count}.npy", np.int64, (count, MOST))
        self.rotated = _open(folder / f"rotated-{count}.npy", np.float32, (count, MOST, 5))
        self.owners = _open(folder / f"owners-{count}.npy", np.uint8, (count, SIDE, SIDE))
        self.ready = folder / f"ready-{count}"

    def fill(self, workers: int) -> None:
        """Compose every scene, unless an earlier run did."""
        if self.ready.exists():
            return
        with ProcessPoolExecutor(workers) as pool:
            made = pool.map(_training_scene, range(len(self.pixels)), chunksize=64)
            for index, scene in enumerate(made):
                self._put(index, scene)
        self.ready.touch()

    def batches(self, size: int, seed: int) -> Iterator[Batch]:
        """Deal shuffled batches for ever."""
        rng = np.random.default_rng(seed)
        while True:
            order = rng.permutation(len(self.pixels))
            for start in range(0, len(order) - size + 1, size):
                rows = np.sort(order[start : start + size])
                every = (self.pixels, self.boxes, self.labels, self.rotated, self.owners)
                yield Batch(*(torch.from_numpy(each[rows]) for each in every))

    def _put(self, index: int, scene: Scene) -> None:
        count = len(scene.labels)
        # A wide scene is letterboxed, as images are when they are served.
        top = (SIDE - scene.pixels.shape[0]) // 2
        self.pixels[index] = PAD
        self.pixels[index, top : SIDE - top] = scene.pixels
        self.boxes[index, :count] = scene.boxes + np.array([0, top, 0, top], np.float32)
        self.rotated[index, :count] = scene.rotated + np.array([0, top, 0, 0, 0], np.float32)
        self.owners[index] = 0
        self.owners[index, top : SIDE - top] = scene.owners
        self.labels[index] = NOTHING
        self.labels[index, :count] = scene.labels


def _training_scene(seed: int) -> Scene:
    return compose(seed, "train", WIDE if seed % 3 == 0 else SQUARE)


def _open(path: Path, dtype: type[np.generic], shape: tuple[int, ...]) -> np.memmap:
    mode = "r+" if path.exists() else "w+"
    return np.lib.format.open_memmap(path, mode=mode, dtype=dtype, shape=shape)
