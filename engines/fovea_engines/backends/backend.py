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
    """Integer type of quantised activations in INT8. Both types use the same calibrated ranges.

    `SIGNED` is int8 with zero point 0; the other layers compute in FP16. GPUs compute it fast.
    `UNSIGNED` is uint8 with any zero point; the other layers compute in FP32. CPUs compute it fast,
    and after SiLU or ReLU its steps are half as large. OpenVINO computes the signed type
    incorrectly.
    """

    SIGNED = "signed"
    UNSIGNED = "unsigned"

    @property
    def weight_bits(self) -> WeightBits:
        """Number of bits of the weights: 7 if this CPU overflows with 8, otherwise 8."""
        return 7 if self is Encoding.UNSIGNED and int8_saturates() else 8


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """Everything except the graph that determines an engine. CPU backends use none of it.

    Attributes:
        source: SHA-256 of the source model.
        precision: precision of the graph.
        preprocess: preprocessing of images; a GPU backend compiles it into a letterbox kernel.
        builder: options of a backend with `takes_builder`; None means its defaults.
        progress: receives the phases of the build.
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
        threads: number of CPU cores; None means all cores of this process, which is also the limit.
            A GPU ignores it.
        streams: number of parallel calls. On a CPU they share the cores; None means one call per
            core, which is also the limit.
        plugins: plugin libraries that a TensorRT engine needs.
        precision: "bf16" computes a float32 graph in bfloat16. The graph itself contains all other
            precisions.
    """

    max_batch: int
    threads: int | None = None
    streams: int | None = None
    plugins: tuple[Plugin, ...] = ()
    precision: Precision = "fp32"

    @property
    def cores(self) -> int:
        """Number of CPU cores to use."""
        usable = usable_cores()
        return min(self.threads or usable, usable)

    @property
    def parallel(self) -> int:
        """Number of parallel calls on a CPU."""
        return min(self.streams or self.cores, self.cores)


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """One backend on this machine: the version of its runtime, or why it cannot be used."""

    name: str
    version: str | None
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Backend(ABC):
    """A runtime: its properties as data, and its operations. The runtime is imported on first use.

    Attributes:
        name: name in cards, in config.pbtxt and for --backend.
        distributions: Python distributions that contain or require the runtime. The first installed
            one has its version.
        extra: extra of Fovea that installs one of the distributions; "" if Fovea requires the
            first.
        suffixes: suffixes of the engine files.
        any_suffix: the backend also recognises its files if no backend has their suffix.
        platform: Triton's name of the platform; "" if Triton has none.
        precisions: supported precisions.
        encoding: integer type of INT8 activations.
        on_gpu: the runtime computes on a GPU.
        several_sizes: an engine may accept images of several sizes.
        fuses: the build adds the image preprocessing and NMS to the graph, unless the plan disables
            it.
        emulated: the reference backend runs the candidates of a build, because compiling takes
            minutes or needs a GPU.
        takes_builder: the backend compiles for the batch sizes and plugins in `BuilderOptions`.
        ahead_of_time: the backend compiles for GPUs that are not in this machine.
        runs_code: opening an engine file runs code in it.
        kept_file: file beside the engine that stores the graph, to compile it again for another
            machine; "" if engines run on every machine.
        cache_file: file that `open` writes beside the engine; "" if it writes none.
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
        """Compile a graph, in its final precision, into a directory; return the path of the engine.

        Raises:
            InvalidModel: the runtime cannot read the model.
            BuildError: the runtime returns no engine.
            OSError: the engine cannot be written.
        """

    @abstractmethod
    def open(self, path: Path, plan: OpenPlan) -> Session:
        """Load an engine. It raises the errors of `open_session`."""

    def mismatch(self, card: EngineCard) -> str | None:
        """Return the reason why an engine cannot run on this machine, or None if the card has none.

        A missing runtime or GPU does not count: opening the engine reports it.
        """
        return card.cpu_mismatch

    def check(self, plan: CompilePlan) -> None:
        """Check that this machine can compile a plan, before a build that takes minutes.

        Raises:
            BackendUnavailable: the runtime is not installed.
            InvalidOption: the backend cannot compile for the GPU, or in the precision.
        """
        return

    def read_header(self, path: Path) -> tuple[str, dict[str, str]]:
        """Return the name of the backend that built a file, and the metadata of the file."""
        return self.name, {}

    def open_gpu_memory(self) -> GpuMemory:
        """Return an object that opens GPU memory of other processes.

        Raises:
            BackendUnavailable: the backend does not support this.
        """
        raise BackendUnavailable(f"{self.name} cannot open GPU memory")

    @property
    def info(self) -> BackendInfo:
        """Describe the backend on this machine, without importing its runtime."""
        for distribution in self.distributions:
            with suppress(metadata.PackageNotFoundError):
                return BackendInfo(self.name, metadata.version(distribution), None)
        return BackendInfo(self.name, None, f"not installed: {self.installation}")

    @property
    def installation(self) -> str:
        """Return the command that installs the runtime."""
        return install_extra(self.extra) if self.extra else install(self.distributions[0])


class GpuBuffer(Protocol):
    """GPU memory of another process. It is thread-safe, and closed with its last reference."""

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Copy a part of the buffer to host memory.

        Raises:
            BackendError: the GPU failed.
        """

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of `data` to a part of the buffer.

        Raises:
            BackendError: the GPU failed.
        """

    def close(self) -> None:
        """Close the buffer, even if it is referenced. A second call has no effect."""


class GpuMemory(Closing, Protocol):
    """Opens buffers, and keeps their GPUs open until it is closed."""

    def open(self, device_id: int, handle: bytes, byte_size: int) -> GpuBuffer:
        """Open the first `byte_size` bytes of a `cudaIpcMemHandle_t` (64 bytes).

        Raises:
            BackendError: the GPU does not exist, or rejects the handle.
            InvalidRequest: the memory has fewer bytes.
        """
