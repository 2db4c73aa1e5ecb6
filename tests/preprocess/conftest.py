"""An image of known pixels, and a real one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from fovea_preprocess.image import decode_image

# Times mean nothing on a shared machine, and a run must not depend on the ones before it.
settings.register_profile(
    "fovea",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine draws slowly
)
settings.load_profile("fovea")


@pytest.fixture(scope="session")
def photo() -> NDArray[np.uint8]:
    """RGB [90, 67, 3]: smooth, alike under no flip or turn, with a little grain."""
    rows, columns = np.mgrid[0:90, 0:67]
    smooth = np.stack((rows * 2.5, columns * 3.4, 200 - rows - columns), axis=-1)
    grain = np.random.default_rng(7).uniform(-3, 3, smooth.shape)
    return np.clip(smooth + grain, 0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def bus(shared: Path) -> NDArray[np.uint8]:
    """A street with a bus, RGB [1080, 810, 3]."""
    return decode_image((shared / "data" / "bus.jpg").read_bytes()).pixels
