"""Images that are made up, of any size."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def draw(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """An image with edges, gradients and texture, the same for the same seed.

    Noise alone leaves a detector's outputs near zero, where any two engines agree.

    Returns:
        uint8 [height, width, 3].
    """
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    y, x = y / height, x / width
    canvas = np.stack([_waves(x, y, random) for _ in range(3)], axis=-1)
    for _ in range(12):
        cx, cy = random.uniform(0.1, 0.9, 2)
        rx, ry = random.uniform(0.04, 0.25, 2)
        dx, dy = (x - cx) / rx, (y - cy) / ry
        inside = dx**2 + dy**2 < 1 if random.random() < 0.5 else np.maximum(abs(dx), abs(dy)) < 1
        shade = random.uniform(0.6, 1.0) + 0.4 * dy[inside, None]
        canvas[inside] = random.uniform(0, 255, 3) * shade
    canvas += random.normal(0, 6, canvas.shape)
    return np.clip(canvas, 0, 255).astype(np.uint8)


def _waves(x: NDArray[Any], y: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    fx, fy, phase = random.uniform(0.5, 4, 3)
    return 128 + 70 * np.sin(6.28 * (fx * x + fy * y + phase))
