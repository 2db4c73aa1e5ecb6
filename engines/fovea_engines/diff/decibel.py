"""Converts ratios of powers to decibels."""

from __future__ import annotations

import math


def decibel(signal: float, noise: float) -> float:
    """Return 10 log10 of a ratio of powers; inf without noise, -inf without a signal."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
