"""The stand-in for a GPU keeps the contract that the GPU keeps in tests/gpu."""

import pytest
from tests.device_contract import DeviceContract
from tests.engines.fake_device import FakeDevice


@pytest.fixture
def device():
    device = FakeDevice()
    yield device
    device.close()
    assert device.misuse == []


class TestFakeDevice(DeviceContract):
    pass
