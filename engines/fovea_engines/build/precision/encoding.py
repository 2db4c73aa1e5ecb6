"""How a range of real values becomes 256 steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.backends.backend import Encoding
from fovea_engines.device import WeightBits

# Sixteen steps of float16 near zero: rounding a smaller scale up would waste more of its range.
_SMALLEST = 2.0**-20


@dataclass(frozen=True, slots=True)
class Steps:
    """real = (integer - zero_point) * scale.

    Attributes:
        scale: float32 scalar; exact in float16 as well, so that both precisions agree, unless it
            is over 65504.
        zero_point: int8 or uint8 scalar.
    """

    scale: NDArray[np.float32]
    zero_point: NDArray[Any]

    @classmethod
    def of(cls, low: float, high: float, encoding: Encoding) -> Steps:
        """Steps over a range that holds zero, which is then exact."""
        if encoding is Encoding.SIGNED:
            return cls(_half_exact(max(-low, high) / 127), np.array(0, np.int8))
        scale = _half_exact((high - low) / 255)
        return cls(scale, np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8))


def encode_weight(
    weight: NDArray[np.float32], bits: WeightBits = 8
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric steps per output channel.

    Args:
        weight: float32 [out, in, ...].
        bits: 8, or 7 for CPUs that add two products in 16 bits: 2 * 255 * 63 fits them.

    Returns:
        int8 of the same shape, -127 to 127 (7 bits: -63 to 63), and the scales, float32 [out].
    """
    top = 2 ** (bits - 1) - 1
    scale = _half_exact(np.abs(weight).reshape(len(weight), -1).max(axis=1) / top)
    steps = np.rint(weight / scale.reshape(-1, *[1] * (weight.ndim - 1)))
    return np.clip(steps, -top, top).astype(np.int8), scale


def _half_exact(scale: Any) -> NDArray[np.float32]:
    """The float16 just above, as float32: rounding down would clip the end of the range."""
    wanted = np.maximum(np.asarray(scale, np.float32), np.float32(_SMALLEST))
    with np.errstate(over="ignore"):
        half = wanted.astype(np.float16)
        half = np.where(half < wanted, np.nextafter(half, np.float16(np.inf)), half)
    return np.where(np.isfinite(half), half, wanted).astype(np.float32)
