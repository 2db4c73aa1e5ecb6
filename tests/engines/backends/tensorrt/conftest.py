"""A stand-in for a GPU, and an engine on it."""

import pytest
from tests.engines.fake_device import fake_gpu
from tests.engines.fake_session import engine
from tests.engines.fake_tensorrt import FakeEngine


@pytest.fixture
def device():
    with fake_gpu() as device:
        yield device


@pytest.fixture
def made(tmp_path, device) -> FakeEngine:
    return engine(tmp_path, device, (1, 4, 8))
