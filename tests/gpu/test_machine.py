"""The driver, CUDA and TensorRT of this machine fit each other."""

import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from fovea_server.cli.doctor import gpu_findings, look

pytestmark = pytest.mark.real

# What TensorRT's own samples do first; the seconds that they wait for it.
STARTS = """
import time
began = time.perf_counter()
import {module} as trt
imported = time.perf_counter()
assert trt.Runtime(trt.Logger()) and trt.Builder(trt.Logger())
print(f"{{imported - began:.2f}} {{time.perf_counter() - imported:.2f}}")
"""


def test_there_is_nothing_to_mend(device, record_property):
    machine = look()
    record_property("GPU", f"{device.name}, compute capability {device.capability}")
    record_property("driver", machine.driver)
    record_property("packages", machine.gpu_packages)
    names = tuple(gpu.name for gpu in machine.gpus)
    backends = tuple(each.name for each in machine.backends if each.version)
    found = gpu_findings(
        machine.driver, names, backends, machine.gpu_packages, machine.cuda_toolkit
    )
    assert list(found) == []


def test_tensorrt_starts(runtime, record_property):
    code = STARTS.format(module=runtime.trt.__name__)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    imported, started = run.stdout.split()[-2:]
    record_property("version", runtime.version)
    record_property("seconds to import", imported)
    record_property("seconds to start", started)


def test_what_its_libraries_are(runtime, record_property):
    """Whether all that they take is on the path is only told: the module may load it itself."""
    spec = util.find_spec(f"{runtime.trt.__name__.removesuffix('_bindings')}_libs")
    if spec is None or spec.origin is None:
        pytest.skip("TensorRT's libraries are not those of a wheel")
    libraries = sorted(Path(spec.origin).parent.glob("*.so*"))
    sizes = {each.name: each.stat().st_size >> 20 for each in libraries}
    record_property("MB", sizes)
    if shutil.which("ldd"):
        missing = set()
        for each in libraries:
            run = subprocess.run(["ldd", each], capture_output=True, text=True, check=False)
            missing |= {line.strip() for line in run.stdout.splitlines() if "not found" in line}
        record_property("not found", sorted(missing))
    assert libraries
