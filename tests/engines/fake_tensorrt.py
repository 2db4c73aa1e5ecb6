"""A stand-in for TensorRT that computes with ONNX Runtime on the memory of `FakeDevice`.

It has TensorRT's names, refuses what TensorRT refuses by the same answers (False, None, or what its
bindings raise: python/src/infer/pyCore.cpp of github.com/NVIDIA/TensorRT), and raises `Misuse`
where the real one would compute nonsense. Where TensorRT promises nothing it is unkind: tensors
come in another order than the model's, and whatever may synchronise the GPU does.
"""

import threading
import weakref
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import numpy as np
import onnxruntime
from tests.engines.fake_device import FakeDevice
from tests.engines.fake_stream import Misuse

from fovea_preprocess.errors import InferenceFailed

ExecutionContextAllocationStrategy = Enum(
    "ExecutionContextAllocationStrategy", ["STATIC", "ON_PROFILE_CHANGE", "USER_MANAGED"]
)
DataType = Enum("DataType", ["FLOAT", "HALF", "BF16", "INT8", "INT32", "INT64", "UINT8", "BOOL"])
TensorIOMode = Enum("TensorIOMode", ["INPUT", "OUTPUT"])
TensorLocation = Enum("TensorLocation", ["DEVICE", "HOST"])
TensorFormat = Enum("TensorFormat", ["LINEAR", "CHW16"])

_TYPES = {
    "tensor(float)": (DataType.FLOAT, np.float32),
    "tensor(float16)": (DataType.HALF, np.float16),
    "tensor(int8)": (DataType.INT8, np.int8),
    "tensor(int32)": (DataType.INT32, np.int32),
    "tensor(int64)": (DataType.INT64, np.int64),
    "tensor(uint8)": (DataType.UINT8, np.uint8),
    "tensor(bool)": (DataType.BOOL, np.bool_),
}

Shapes = dict[str, tuple[int, ...]]
# The least, the best and the greatest shape of each dynamic input.
Profile = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


class FakeRuntimeConfig:
    """An `IRuntimeConfig`."""

    strategy = ExecutionContextAllocationStrategy.STATIC

    def set_execution_context_allocation_strategy(self, strategy) -> None:
        self.strategy = strategy


class Dims(Sequence):
    """TensorRT's `Dims`, which is no tuple and equals none."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = tuple(shape)

    def __len__(self) -> int:
        return len(self._shape)

    def __getitem__(self, index):
        return self._shape[index]


class FakeEngine:
    """What a plan holds: `load` gives an `ICudaEngine` of it.

    Args:
        model: an ONNX file.
        device: where it runs.
        profiles: none for a model without dynamic inputs.
        workspace: bytes that its contexts compute in.

    Attributes:
        runs: (stream, first dimension of the first input, profile) of all executions, in order.
        contexts: those that are alive.
        recordable: whether its work fits into a CUDA graph.
        types, locations, formats: what is said of a tensor, by name, in place of what is so.
    """

    def __init__(
        self, model: Path, device: FakeDevice, profiles: list[Profile] = (), workspace: int = 4096
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self.device = device
        self.profiles = list(profiles)
        self.device_memory_size_v2 = workspace
        self.recordable = True
        self._making = threading.Lock()
        self.runs: list[tuple[int, int, int]] = []
        self.contexts: weakref.WeakSet[FakeContext] = weakref.WeakSet()
        self.types: dict[str, DataType] = {}
        self.locations: dict[str, TensorLocation] = {}
        self.formats: dict[str, TensorFormat] = {}
        self._inputs = {node.name: node for node in self.session.get_inputs()}
        self._nodes = self._inputs | {node.name: node for node in self.session.get_outputs()}
        self._output_shapes: dict[tuple, Shapes] = {}

    @property
    def num_io_tensors(self) -> int:
        return len(self._nodes)

    @property
    def num_optimization_profiles(self) -> int:
        return max(1, len(self.profiles))

    def load(self) -> "FakeLoaded":
        return FakeLoaded(self)

    def get_tensor_name(self, index: int) -> str:
        return list(self._nodes)[::-1][index]

    def get_tensor_mode(self, name: str):
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str):
        return self.types.get(name, _TYPES[self._nodes[name].type][0])

    def get_tensor_location(self, name: str):
        return self.locations.get(name, TensorLocation.DEVICE)

    def get_tensor_format(self, name: str):
        return self.formats.get(name, TensorFormat.LINEAR)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(n if isinstance(n, int) else -1 for n in self._nodes[name].shape)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        return list(self.profiles[profile_index][name])

    def create_runtime_config(self) -> FakeRuntimeConfig:
        return FakeRuntimeConfig()

    def make_context(self, loaded: "FakeLoaded", runtime_config: FakeRuntimeConfig):
        self.device.check_current("create_execution_context")
        if runtime_config.strategy is not ExecutionContextAllocationStrategy.USER_MANAGED:
            raise Misuse("this context would take memory of its own")
        if self.device.told_to_fail("context", "enqueue"):
            return None
        if not self._making.acquire(blocking=False):
            raise Misuse("two threads make contexts of one engine at once")
        try:
            self.device.synchronise()
            context = FakeContext(loaded)
            self.contexts.add(context)
            return context
        except InferenceFailed:
            return None
        finally:
            self._making.release()

    def inputs(self) -> list[str]:
        return list(self._inputs)

    def bytes_of(self, name: str, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape)) * np.dtype(self.dtype(name)).itemsize

    def dtype(self, name: str):
        return _TYPES[self._nodes[name].type][1]

    def output_shapes(self, inputs: Shapes) -> Shapes:
        """What comes out for these shapes, found out by computing it once."""
        key = tuple(inputs.items())
        if key not in self._output_shapes:
            zeros = {name: np.zeros(shape, self.dtype(name)) for name, shape in inputs.items()}
            names = [name for name in self._nodes if name not in self._inputs]
            found = self.session.run(names, zeros)
            self._output_shapes[key] = {n: a.shape for n, a in zip(names, found, strict=True)}
        return self._output_shapes[key]


class FakeLoaded:
    """An `ICudaEngine`: it is there until the code that was given it lets go of it."""

    def __init__(self, made: FakeEngine) -> None:
        self._made = made
        made.device.living.add(self)

    def __getattr__(self, name: str):
        return getattr(self._made, name)

    def create_execution_context(self, runtime_config: FakeRuntimeConfig):
        return self._made.make_context(self, runtime_config)

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self._made.get_tensor_shape(name))

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        return list(map(Dims, self._made.get_tensor_profile_shape(name, profile_index)))


class FakeContext:
    """An `IExecutionContext` without memory of its own."""

    def __init__(self, loaded: FakeLoaded) -> None:
        self._loaded, self._engine = loaded, loaded._made
        engine = self._engine
        engine.device.living.add(self)
        self._ran = False
        self._profile = 0
        self._shapes: Shapes = {}
        self._addresses: dict[str, int] = {}
        self._memory: tuple[int, int] | None = None
        # A graph that was recorded before a change is no longer valid.
        self._changes = 0
        for name in engine.inputs():
            if -1 not in engine.get_tensor_shape(name):
                self._shapes[name] = engine.get_tensor_shape(name)

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._engine.device.stream_of(stream_handle).check("set_optimization_profile_async")
        known = 0 <= profile_index < self._engine.num_optimization_profiles
        if not known or self._engine.device.told_to_fail("profile", "enqueue"):
            raise RuntimeError("Error in set optimization profile async.")
        self._changes += 1
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        fixed = self._engine.get_tensor_shape(name)
        if -1 not in fixed:
            return tuple(shape) == fixed
        least, _, greatest = self._engine.profiles[self._profile][name]
        if not all(a <= n <= b for a, n, b in zip(least, shape, greatest, strict=True)):
            return False
        self._changes += 1
        self._shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name: str) -> Dims:
        if name in self._shapes:
            return Dims(self._shapes[name])
        if len(self._shapes) < len(self._engine.inputs()):
            return Dims(self._engine.get_tensor_shape(name))
        return Dims(self._engine.output_shapes(self._shapes)[name])

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if self._engine.device.told_to_fail("address", "enqueue"):
            return False
        self._changes += 1
        self._addresses[name] = memory
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        if memory % 256 or size < self._engine.device_memory_size_v2:
            raise Misuse("memory to compute in is too small or not aligned")
        self._changes += 1
        self._memory = memory, size

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine = self._engine
        ready = (
            len(self._shapes) == len(engine.inputs())
            and self._addresses.keys() == engine._nodes.keys()
            and self._memory is not None
        )
        if not ready or engine.device.told_to_fail("refuse", "enqueue"):
            return False
        stream = engine.device.stream_of(stream_handle)
        if stream.recording is not None and not (self._ran and engine.recordable):
            return False
        if not self._ran:
            # It loads its kernels.
            try:
                engine.device.synchronise()
            except InferenceFailed:
                return False
            self._ran = True
        changes = self._changes
        alive = weakref.ref(self)

        def compute() -> None:
            context = alive()
            if context is None or context._changes != changes:
                raise Misuse("a context that was changed or dropped is run")
            context._compute(stream_handle)

        stream.enqueue("execute", compute)
        return True

    def _compute(self, stream: int) -> None:
        engine, device = self._engine, self._engine.device
        workspace = device.at(*self._memory)
        if not workspace.busy.acquire(blocking=False):
            raise Misuse("two runs compute in the same memory at once")
        try:
            rows = (*self._shapes[engine.inputs()[0]], 1)[0]
            engine.runs.append((stream, rows, self._profile))
            feeds = {name: self._view(name, shape) for name, shape in self._shapes.items()}
            outputs = engine.output_shapes(self._shapes)
            for name, found in zip(outputs, engine.session.run(list(outputs), feeds), strict=True):
                self._view(name, outputs[name])[...] = found
        finally:
            workspace.busy.release()

    def _view(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        size = self._engine.bytes_of(name, shape)
        memory = self._engine.device.at(self._addresses[name], size)
        return memory.bytes[:size].view(self._engine.dtype(name)).reshape(shape)
