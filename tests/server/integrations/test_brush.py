"""Brush masks are packed as @thi.ng/rle-pack reads them: a reader of its format, bit by bit."""

import numpy as np
import pytest

from fovea_server.integrations.label_studio.regions import pack_mask


def unpacked(data):
    """The values of a packed array, by the description of the format."""
    bits = "".join(f"{byte:08b}" for byte in data.tolist())
    at = 0

    def number(size):
        nonlocal at
        at += size
        return int(bits[at - size : at], 2)

    count, value_bits = number(32), number(5) + 1
    widths = [number(4) + 1 for _ in range(4)]
    values = []
    while len(values) < count:
        repeats = number(1)
        length = number(widths[number(2)]) + 1
        assert repeats, "a run, not single values"
        values += [number(value_bits)] * length
    assert len(bits) - at < 8
    return np.array(values, np.uint8)


def blob(height, width):
    mask = np.zeros((height, width), np.uint8)
    mask[height // 4 : height // 2, 1:-1] = 1
    return mask


@pytest.mark.parametrize(
    "mask",
    [
        np.random.default_rng(3).integers(0, 2, (90, 70), np.uint8),  # noise
        np.zeros((300, 300), np.uint8),  # a run that is longer than any count
        np.ones((128, 128), np.uint8),  # a run as long as the longest count
        np.ones((1, 1), np.uint8),
        blob(200, 100),
        np.arange(600, dtype=np.uint8).reshape(20, 30) % 16 // 4 % 2,  # as long as the shortest
    ],
    ids=["noise", "long", "longest", "dot", "blob", "shortest"],
)
def test_a_mask_comes_back(mask):
    values = unpacked(pack_mask(mask)).reshape(*mask.shape, 4)
    assert (values == mask[..., None] * 255).all()
