"""A stand-in for TensorRT, where that cannot be had, that computes with a kernel on a real GPU.

It has TensorRT's names, as `tests.engines.fake_tensorrt` has; all that is below them is real.
"""

from collections.abc import Iterator

from tests.engines import fake_tensorrt
from tests.engines.fake_tensorrt import DataType, TensorFormat, TensorIOMode, TensorLocation
from tests.gpu.affine import Affine

from fovea_engines.backends.tensorrt.cuda.driver import Device, open_device
from fovea_engines.backends.tensorrt.cuda.resources import driver_call
from fovea_engines.backends.tensorrt.session import TensorRTSession
from fovea_preprocess.errors import InferenceFailed


class KernelEngine:
    """An `ICudaEngine` that computes y = 2 x + 1 of float32 [rows, columns].

    Args:
        device: where; let go of after the engine, which outlives its sessions.
        batches: (least, best, greatest) of each profile.
        columns: of a row.

    Attributes:
        kernel: which computes it.
        runs: (rows, profile) of all executions that were enqueued or recorded, in order.
        refusals: whether the next executions are refused; none of those after.
        recordable: whether its work fits into a CUDA graph.
        device_memory_size_v2: bytes that its contexts compute in.
    """

    num_io_tensors = 2

    def __init__(self, device: Device, *batches: tuple[int, int, int], columns: int = 4) -> None:
        self.batches, self.columns = batches, columns
        self.runs: list[tuple[int, int]] = []
        self.refusals: Iterator[bool] = iter(())
        self.recordable = True
        self.num_optimization_profiles = len(batches)
        self.device_memory_size_v2 = 4 * columns * max(greatest for _, _, greatest in batches)
        self.kernel = Affine(device)

    def close(self) -> None:
        self.kernel.close()

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name == "x" else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType.FLOAT

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.DEVICE

    def get_tensor_format(self, name: str) -> TensorFormat:
        return TensorFormat.LINEAR

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return -1, self.columns

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        return [(rows, self.columns) for rows in self.batches[profile_index]]

    def create_runtime_config(self) -> fake_tensorrt.FakeRuntimeConfig:
        return fake_tensorrt.FakeRuntimeConfig()

    def create_execution_context(self, runtime_config: object) -> "KernelContext":
        return KernelContext(self)


class KernelContext:
    """An `IExecutionContext` without memory of its own."""

    def __init__(self, engine: KernelEngine) -> None:
        self._engine = engine
        self._profile = self._rows = self._memory = 0
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if not 0 <= profile_index < self._engine.num_optimization_profiles:
            raise RuntimeError("Error in set optimization profile async.")
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, greatest = self._engine.batches[self._profile]
        self._rows = shape[0]
        return least <= shape[0] <= greatest

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._rows, self._engine.columns

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self._engine.device_memory_size_v2
        self._memory = memory

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine = self._engine
        if next(engine.refusals, False):
            return False
        engine.runs.append((self._rows, self._profile))
        x, y, count = self._addresses["x"], self._addresses["y"], self._rows * engine.columns
        try:
            if not engine.recordable:
                driver_call("cuStreamSynchronize", stream_handle)
            engine.kernel.enqueue(stream_handle, x, self._memory, y, count)
        except InferenceFailed:
            return False
        return True


def open_session(engine: KernelEngine, *, max_batch: int = 8, **options: object) -> TensorRTSession:
    """A session on a device of its own, as `open_engine` opens one."""
    device = open_device()
    try:
        return TensorRTSession(engine, device, fake_tensorrt, max_batch=max_batch, **options)
    except BaseException:
        device.close()
        raise
