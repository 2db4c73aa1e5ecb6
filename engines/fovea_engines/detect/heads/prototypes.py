"""Masks as sums of prototypes: what YOLACT (arXiv 1904.02689) and YOLO's segmenters compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.signature import OTHERS, Signature
from fovea_engines.detect.masks import Masks
from fovea_engines.session import Array, TensorSpec


def rows_and_prototypes(signature: Signature) -> tuple[TensorSpec, TensorSpec] | str:
    """Return the outputs [batch, m, n] of objects and [batch, k, h, w] of prototypes.

    If the model has others, it is the reason.
    """
    rows = [tensor for tensor in signature.outputs if len(tensor.shape) == 3]
    maps = [tensor for tensor in signature.outputs if len(tensor.shape) == 4]
    if len(rows) != 1 or len(maps) != 1 or len(signature.outputs) != 2:
        return OTHERS
    if maps[0].shape[1] < 1:
        return f"{maps[0].name} has a dynamic number of prototypes"
    return rows[0], maps[0]


@np.errstate(invalid="ignore", over="ignore")
def prototype_masks(
    prototypes: Array,
    coefficients: NDArray[np.float32],
    boxes: NDArray[np.float32],
    size: tuple[int, int],
) -> Masks:
    """Return the masks of objects, computed only inside their boxes.

    Args:
        prototypes: [k, h, w] over the whole input.
        coefficients: float32 [n, k].
        boxes: float32 [n, 4], corners in pixels of the input.
        size: (height, width) of the input, pixels.
    """
    height, width = prototypes.shape[1:]
    pixels = np.array([size[1] / width, size[0] / height] * 2)
    cells = boxes / pixels
    # The cells next to a box, too: pixels are interpolated between the centres of cells.
    first = np.clip(np.floor(cells[:, :2]) - 1, 0, [width, height]).astype(int)
    last = np.clip(np.ceil(cells[:, 2:]) + 1, first, [width, height]).astype(int)
    windows = []
    for weights, (x1, y1), (x2, y2) in zip(
        coefficients, first.tolist(), last.tolist(), strict=True
    ):
        part = prototypes[:, y1:y2, x1:x2]
        sums = weights @ part.reshape(len(part), part[0].size)
        windows.append(sums.reshape(part.shape[1:]).astype(np.float32, copy=False))
    places = np.concatenate([first, last], axis=1) * pixels
    return Masks(tuple(windows), places, boxes.astype(np.float64), size)
