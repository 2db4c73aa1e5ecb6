"""What an engine takes of a GPU comes back; what does not fit is refused, and nothing is left."""

import subprocess
import sys

import pytest
from tests.drawn import draw

from fovea_engines.engine import Engine
from fovea_preprocess.errors import OutOfMemory

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

# What the driver keeps for itself may grow a little.
SLACK = 16 << 20
LEFT = 8 << 20
# In a process of its own: that of the tests has the device open all the time.
TURNS = """
import sys
from pathlib import Path
import numpy as np
from fovea_engines.engine import Engine
from fovea_engines.backends.tensorrt.cuda.driver import open_device
from fovea_engines.backends.tensorrt.cuda.resources import driver_call
for _ in range(5):
    Engine.open(Path(sys.argv[1])).close()
    _, active = driver_call("cuDevicePrimaryCtxGetState", driver_call("cuDeviceGet", 0))
    with Engine.open(Path(sys.argv[1])) as engine:
        engine.outputs_of(np.zeros((64, 80, 3), np.uint8))
    with open_device() as device, device.current():
        print(active, device.memory()[0])
"""


def test_memory_comes_back_and_the_context_stays(folder, record_property):
    run = subprocess.run(
        [sys.executable, "-c", TURNS, folder], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    turns = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    record_property("MB free", [free >> 20 for _, free in turns])
    assert [active for active, _ in turns] == [1] * 5
    assert turns[-1][1] >= turns[0][1] - SLACK


def test_what_does_not_fit_is_refused_and_then_fits(device, folder, record_property, caplog):
    # What a first engine leaves behind stays with the process: the driver's own.
    Engine.open(folder).close()
    with device.current():
        free, _ = device.memory()
        hog = device.alloc(free - LEFT)
    try:
        with pytest.raises(OutOfMemory) as refused:
            Engine.open(folder)
    finally:
        with device.current():
            hog.close()
    record_property("said", str(refused.value))
    record_property("logged", caplog.messages)
    with Engine.open(folder) as engine:
        assert len(engine.detect(draw(64, 80, 0)))
    with device.current():
        assert device.memory()[0] >= free - SLACK
