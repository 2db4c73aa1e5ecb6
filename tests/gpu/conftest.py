"""The GPU of this machine; every test here is skipped where there is none."""

import pytest

from fovea_engines.cuda.driver import open_device
from fovea_preprocess.errors import BackendUnavailable


@pytest.fixture
def device():
    try:
        found = open_device()
    except BackendUnavailable as reason:
        pytest.skip(str(reason))
    with found:
        yield found
