"""The interface between Fovea and a runtime that runs engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Protocol

from fovea_engines.backends.installing import install, install_extra
from fovea_engines.device import WeightBits, int8_saturates, usable_cores
from fovea_engines.progress import Progress
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import Precision
from fovea_engines.repository.options import BuilderOptions, Plugin
from fovea_engines.session import Closing, Session
from fovea_preprocess.errors import BackendUnavailable
from fovea_preprocess.spec import PreprocessSpec


class Encoding(StrEnum):
    """Integer type of the quantised activations of an INT8 engine.

    Both types use the same calibrated ranges.

    `SIGNED` is int8 with zero point 0. GPUs compute this type fast. The layers that are not
    quantised compute in FP16.

    `UNSIGNED` is uint8 with any zero point. CPUs compute this type fast. After SiLU or ReLU, which
    return few negative values, its quantisation steps are half as large as the steps of `SIGNED`.
    The layers that are not quantised compute in FP32. OpenVINO computes `SIGNED` incorrectly, so
    CPUs use `UNSIGNED`.
    """

    SIGNED = "signed"
    UNSIGNED = "unsigned"

    @property
    def weight_bits(self) -> WeightBits:
        """Number of bits of the weights: 7 if 8 bits can overflow on this CPU, otherwise 8."""
        return 7 if self is Encoding.UNSIGNED and int8_saturates() else 8


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """The inputs of a compilation besides the graph. CPU backends do not use them.

    Attributes:
        source: SHA-256 of the source model in hexadecimal.
        precision: precision of the graph, e.g. "int8".
        preprocess: preprocessing of images. A GPU backend compiles it into a letterbox kernel.
        builder: options for a backend with `takes_builder`; None means the defaults of
            `BuilderOptions`.
        progress: object that receives the phases of the build.
    """

    source: str = ""
    precision: str = "fp32"
    preprocess: PreprocessSpec | None = None
    builder: BuilderOptions | None = None
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """The options for opening an engine.

    Attributes:
        max_batch: largest batch size of a call; 0 if the model has no batch dimension.
        threads: number of CPU cores. None, or a larger number, means all cores that this process
            may use. A GPU ignores this field.
        streams: number of parallel calls. On a CPU, the calls share the cores. There, None or a
            larger number means one call per core.
        plugins: plugin libraries that a TensorRT engine needs.
        precision: precision of the computation. Only "bf16" has an effect: a float32 graph is
            computed in bfloat16. The data types in the graph define every other precision.
    """

    max_batch: int
    threads: int | None = None
    streams: int | None = None
    plugins: tuple[Plugin, ...] = ()
    precision: Precision = "fp32"

    @property
    def cores(self) -> int:
        """Number of CPU cores to use, at least 1."""
        usable = usable_cores()
        return min(self.threads or usable, usable)

    @property
    def parallel(self) -> int:
        """Number of parallel calls on a CPU, at least 1."""
        return min(self.streams or self.cores, self.cores)


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """The state of one backend on this machine.

    Attributes:
        name: name of the backend.
        version: version of its runtime; None if the runtime is not installed.
        problem: reason why the backend cannot be used; None if it can be used.
    """

    name: str
    version: str | None
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Backend(ABC):
    """A runtime that compiles and runs engines.

    The attributes describe the runtime. The methods import the runtime's package when they need it.

    Attributes:
        name: name of the backend in cards, in config.pbtxt and for --backend.
        distributions: names of Python distributions that contain or require the runtime. The first
            installed distribution gives the version.
        extra: extra of Fovea that installs one of the distributions; "" if Fovea always requires
            the first distribution.
        suffixes: suffixes of the engine files, e.g. ".onnx".
        any_suffix: True if this backend opens files whose suffix belongs to no backend.
        platform: Triton's name of the platform; "" if Triton does not have this platform.
        precisions: precisions that the backend supports.
        encoding: integer type of the activations in INT8 engines.
        on_gpu: True if the runtime computes on a GPU.
        several_sizes: True if one engine can accept images of several sizes.
        fuses: True if the build adds the image preprocessing and NMS to the graph by default.
        emulated: True if a build compares its candidate graphs with the reference backend, because
            this backend compiles for minutes or needs a GPU.
        takes_builder: True if the backend uses `BuilderOptions`, e.g. batch sizes and plugins.
        ahead_of_time: True if the backend can compile for GPUs that are not in this machine.
        runs_code: True if opening an engine file runs code from the file.
        kept_file: name of the file beside the engine that stores the graph. Another machine
            compiles the graph again. "" if engines run on every machine.
        cache_file: name of the cache file that `open` writes beside the engine; "" if `open` writes
            no file.
    """

    name: str
    distributions: tuple[str, ...]
    extra: str = ""
    suffixes: tuple[str, ...]
    any_suffix: bool = False
    platform: str = ""
    precisions: tuple[Precision, ...] = ("fp32", "fp16", "int8")
    encoding: Encoding = Encoding.UNSIGNED
    on_gpu: bool = False
    several_sizes: bool = False
    fuses: bool = False
    emulated: bool = False
    takes_builder: bool = False
    ahead_of_time: bool = False
    runs_code: bool = False
    kept_file: str = ""
    cache_file: str = ""

    @abstractmethod
    def compile(self, model: bytes | Path, folder: Path, plan: CompilePlan | None = None) -> Path:
        """Compile a graph in its final precision into a directory.

        Args:
            model: ONNX file, or its content.
            folder: existing directory for the engine file.
            plan: inputs of the compilation besides the graph; None means the defaults of
                `CompilePlan`.

        Returns:
            The path of the engine file.

        Raises:
            InvalidModel: the runtime cannot read the model.
            BuildError: the runtime does not return an engine.
            OSError: the engine cannot be written.
        """

    @abstractmethod
    def open(self, path: Path, plan: OpenPlan) -> Session:
        """Load an engine file, and return a session that runs it.

        The method raises the errors of `open_session`.
        """

    def mismatch(self, card: EngineCard) -> str | None:
        """Return the reason why the engine of a card cannot run on this machine.

        If the card shows no such reason, return None.

        The method ignores a missing runtime or GPU, because `open` reports it.
        """
        return card.cpu_mismatch

    def check(self, plan: CompilePlan) -> None:
        """Check that this machine can compile with a plan, before a build that takes minutes.

        Raises:
            BackendUnavailable: the runtime is not installed.
            InvalidOption: the backend cannot compile for the GPUs of the plan, or in its precision.
        """
        return

    def read_header(self, path: Path) -> tuple[str, dict[str, str]]:
        """Return the name of the backend that built an engine file, and the file's metadata."""
        return self.name, {}

    def open_gpu_memory(self) -> GpuMemory:
        """Return an object that opens the GPU memory of other processes.

        Raises:
            BackendUnavailable: the backend does not support GPU memory of other processes.
        """
        raise BackendUnavailable(f"{self.name} cannot open GPU memory")

    @property
    def info(self) -> BackendInfo:
        """Return the state of the backend on this machine, without importing its runtime."""
        for distribution in self.distributions:
            with suppress(metadata.PackageNotFoundError):
                return BackendInfo(self.name, metadata.version(distribution), None)
        return BackendInfo(self.name, None, f"not installed: {self.installation}")

    @property
    def installation(self) -> str:
        """Return the shell command that installs the runtime."""
        return install_extra(self.extra) if self.extra else install(self.distributions[0])


class GpuBuffer(Protocol):
    """GPU memory that another process allocated.

    Several threads may use a buffer at the same time. It is closed with its last reference.
    """

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Copy `byte_size` bytes of the buffer, from a byte offset on, to host memory.

        Returns:
            The copy.

        Raises:
            BackendError: the GPU failed.
        """

    def write(self, offset: int, data: memoryview) -> None:
        """Write all bytes of `data` to the buffer, from a byte offset on.

        Raises:
            BackendError: the GPU failed.
        """

    def close(self) -> None:
        """Close the buffer, even if other objects still reference it.

        A second call has no effect.
        """


class GpuMemory(Closing, Protocol):
    """Opens GPU buffers of other processes. Their GPUs stay open until this object is closed."""

    def open(self, device_id: int, handle: bytes, byte_size: int) -> GpuBuffer:
        """Open the first `byte_size` bytes of GPU memory that another process shares.

        `handle` is the memory's `cudaIpcMemHandle_t` (64 bytes). `device_id` is the index of the
        GPU.

        Raises:
            BackendError: the GPU does not exist, or rejects the handle.
            InvalidRequest: `byte_size` is not positive, or exceeds the size of the memory.
        """
