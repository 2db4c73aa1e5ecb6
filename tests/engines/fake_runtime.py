"""TensorRT for RTX as it is, but for what takes a GPU: that is done by the stand-ins.

Plans are built for real, and "loading" one gives a `FakeEngine` of a model that the test names.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.engines import fake_tensorrt
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_tensorrt import FakeEngine, FakeLoaded, FakeRuntimeConfig

from fovea_engines.backends.tensorrt.runtime import RTX, Runtime, load_runtime
from fovea_engines.device import Gpu
from fovea_preprocess.errors import InferenceFailed

HERE = Gpu(FakeDevice.name, "89")


class FakeRuntimeCache:
    """An `IRuntimeCache` that says what it was given, and then what it has compiled."""

    def __init__(self) -> None:
        self.known = b""

    def deserialize(self, blob: bytes) -> bool:
        self.known = blob
        return True

    def serialize(self) -> bytes:
        return self.known or b"kernels"


class FakeRtxConfig(FakeRuntimeConfig):
    """An `IRuntimeConfig` of RTX."""

    cache: FakeRuntimeCache | None = None

    def create_runtime_cache(self) -> FakeRuntimeCache:
        return FakeRuntimeCache()

    def set_runtime_cache(self, cache: FakeRuntimeCache) -> None:
        self.cache = cache


class FakeRtxEngine(FakeEngine):
    """An `ICudaEngine` of RTX."""

    def create_runtime_config(self) -> FakeRtxConfig:
        self.config = FakeRtxConfig()
        return self.config


class FakeModule:
    """The bindings, with another `Runtime`."""

    ExecutionContextAllocationStrategy = fake_tensorrt.ExecutionContextAllocationStrategy

    def __init__(self, trt: object, machine: "FakeGpuMachine") -> None:
        self._trt, self._machine = trt, machine

    def __getattr__(self, name: str) -> object:
        return getattr(self._trt, name)

    def Runtime(self, logger: object) -> "FakeRuntime":  # noqa: N802  TensorRT's name
        if not self._machine.starts:
            raise TypeError("pybind11::init(): factory function returned nullptr")
        return FakeRuntime(self._trt, self._machine)


class FakeRuntime:
    """A `Runtime` of RTX."""

    def __init__(self, trt: object, machine: "FakeGpuMachine") -> None:
        self._trt, self._machine = trt, machine

    def get_engine_validity(self, buffer: memoryview) -> tuple[object, int]:
        assert bytes(buffer[:4]) == b"vtrt"
        self._machine.checked.append(len(buffer))
        kinds = self._trt.EngineValidity
        found = self._machine.invalid
        return kinds.INVALID if found else kinds.VALID, found

    def deserialize_cuda_engine(self, plan: memoryview) -> FakeLoaded | None:
        assert bytes(plan[:4]) == b"vtrt"
        return self._machine.load()


class FakeGpuMachine:
    """A machine with a GPU, on which every plan computes `model`.

    Attributes:
        model: ONNX file; None lets TensorRT refuse every plan.
        rows: most that a plan takes.
        starts: whether CUDA does.
        invalid: bits of `EngineInvalidityDiagnostics` that every plan has.
        said: TensorRT's message where it refuses a plan.
        checked: bytes of the plans whose validity was asked for.
        engines: that were loaded.
        devices: that were opened; `prepare` is called with each, and `recording` while it records.
    """

    def __init__(self, model: Path | None = None, rows: int = 4) -> None:
        self.model, self.rows = model, rows
        self.starts, self.invalid, self.said = True, 0, ""
        self.checked: list[int] = []
        self.engines: list[FakeRtxEngine] = []
        self.devices: list[FakeDevice] = []
        self.prepare: Callable[[FakeDevice], None] = lambda device: None
        self.recording: Callable[[FakeDevice], None] = lambda device: None
        real = load_runtime(RTX)
        self.runtime = Runtime(RTX, FakeModule(real.trt, self), real.logger, real.log)

    def open_device(self) -> FakeDevice:
        device = FakeDevice()
        self.prepare(device)
        device.recording = lambda: self.recording(device)
        self.devices.append(device)
        return device

    def load(self) -> FakeLoaded | None:
        """Load a plan onto the device that was opened last."""
        device = self.devices[-1]
        device.check_current("deserialize_cuda_engine")
        try:
            device.synchronise()
        except InferenceFailed as error:
            self.said = str(error)
        if self.model is None or self.said:
            self.runtime.log.write(self.said, logging.ERROR)
            return None
        engine = FakeRtxEngine(self.model, device)
        [name] = engine.inputs()
        row = engine.get_tensor_shape(name)[1:]
        engine.profiles = [{name: tuple((rows, *row) for rows in (1, 2, self.rows))}]
        self.engines.append(engine)
        return engine.load()


@contextmanager
def fake_gpu_machine(gpu: Gpu = HERE) -> Iterator[FakeGpuMachine]:
    """In the end every device is closed, and nothing was against the rules."""
    machine = FakeGpuMachine()
    with gpu_is_here(gpu) as patch:
        engine_file = "fovea_engines.backends.tensorrt.engine_file"
        patch.setattr(f"{engine_file}.open_device", machine.open_device)
        patch.setattr(f"{engine_file}.load_runtime", lambda backend: machine.runtime)
        yield machine
    for device in machine.devices:
        assert device.closed
        assert device.misuse == []
        assert +device.alive == Counter()


@contextmanager
def gpu_is_here(gpu: Gpu | None) -> Iterator[pytest.MonkeyPatch]:
    """The driver says so; nothing can run on it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            "fovea_engines.build.assemble",
            "fovea_engines.build.rebuild",
            "fovea_engines.backends.tensorrt.backend",
            "fovea_engines.backends.tensorrt.runtime",
        ):
            patch.setattr(f"{module}.gpu_here", lambda: gpu)
        yield patch
