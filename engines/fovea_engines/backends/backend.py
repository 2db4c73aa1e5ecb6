"""Defines the interface between Fovea and a runtime that executes engines."""

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
    """Integers that stand for activations in INT8; both are made from the same ranges.

    `SIGNED` is int8 with zero point 0, around it FP16: GPUs compute that fast. `UNSIGNED` is uint8
    with a zero point anywhere, around it FP32: CPUs compute that fast, OpenVINO computes the signed
    one wrongly, and after SiLU or ReLU it is twice as fine.
    """

    SIGNED = "signed"
    UNSIGNED = "unsigned"

    @property
    def weight_bits(self) -> WeightBits:
        """Bits of the weights beside such activations: 7 where this CPU overflows with 8."""
        return 7 if self is Encoding.UNSIGNED and int8_saturates() else 8


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """Everything beside the graph that an engine depends on; CPU backends need none of it.

    Attributes:
        source: sha256 of the graph's source.
        builder: options of a backend with `takes_builder`; None takes its defaults.
    """

    source: str = ""
    precision: str = "fp32"
    preprocess: PreprocessSpec | None = None
    builder: BuilderOptions | None = None
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """The options with which an engine is opened.

    Attributes:
        max_batch: most rows of a call; 0 when the model has no batch dimension.
        threads: CPU cores to use; None takes all this process may use, and there are never more. A
            GPU ignores it.
        streams: parallel calls. On a CPU they share those cores, and None is one a core; there are
            never more.
        plugins: libraries that a TensorRT engine needs.
        precision: "bf16" computes a float32 graph in bfloat16; every other one is in the graph.
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
    """One backend on this machine: its runtime's version, or why it cannot be used."""

    name: str
    version: str | None
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Backend(ABC):
    """A runtime: what it can do, as data, and its operations. It is imported on first use.

    Attributes:
        name: in cards, in config.pbtxt and of --backend.
        distributions: any of them contains the runtime, or brings it; the first that is installed
            has its version.
        extra: Fovea's extra with one of them; "" if Fovea requires the first.
        suffixes: of the files that it opens.
        any_suffix: it also recognises its files under a suffix that no backend has.
        platform: Triton's name of the platform; "" where Triton has none.
        precisions: arithmetic that it offers.
        encoding: of the INT8 activations that it computes.
        several_sizes: an engine may take images of several sizes.
        fuses: image front and NMS tail belong into its graphs, if the plan does not say otherwise.
        emulated: candidates are computed by the reference backend, because compiling takes minutes
            or a GPU.
        takes_builder: it compiles for the batches and with the plugins of `BuilderOptions`.
        ahead_of_time: it compiles for GPUs that are not in this machine.
        runs_code: opening a file runs code that is in it.
        kept_file: file beside the engine with the graph to compile again for another machine; ""
            where engines run on every machine.
        cache_file: file that `open` writes beside the engine; "" for none.
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
        """Compile a graph, in its final precision, into a folder; return the path of the engine.

        Raises:
            InvalidModel: the runtime cannot read the model.
            BuildError: it returns no engine.
            OSError: the engine cannot be written.
        """

    @abstractmethod
    def open(self, path: Path, plan: OpenPlan) -> Session:
        """Load an engine; raises as `open_session`."""

    def mismatch(self, card: EngineCard) -> str | None:
        """Return the reason why an engine cannot run here; None where its card shows none.

        A missing runtime or GPU is no mismatch: opening the engine reports it.
        """
        return card.cpu_mismatch

    def check(self, plan: CompilePlan) -> None:
        """Check, before work that takes minutes, that this machine can compile a plan.

        Raises:
            BackendUnavailable: the runtime is not installed.
            InvalidOption: it cannot compile for that GPU, or in that precision.
        """
        return

    def read_header(self, path: Path) -> tuple[str, dict[str, str]]:
        """Return the backend that a file was made for, and its maker's metadata."""
        return self.name, {}

    def open_gpu_memory(self) -> GpuMemory:
        """Return what opens memory of other processes; BackendUnavailable where there is none."""
        raise BackendUnavailable(f"{self.name} opens no memory of GPUs")

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
    """Memory of another process; safe in any thread, and closed with its last reference."""

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Copy a part of it to the host's memory; `BackendError`: the GPU has failed."""

    def write(self, offset: int, data: memoryview) -> None:
        """Write to a part of it, completely; `BackendError`: the GPU has failed."""

    def close(self) -> None:
        """Close it, even if it is referenced. Calling it again does nothing."""


class GpuMemory(Closing, Protocol):
    """Opens buffers, and holds the GPUs that they are on until it is closed."""

    def open(self, device_id: int, handle: bytes, byte_size: int) -> GpuBuffer:
        """Open the first `byte_size` bytes of a `cudaIpcMemHandle_t`, 64 bytes.

        Raises:
            BackendError: there is no such GPU, or it refuses the handle.
            InvalidRequest: the memory is smaller.
        """
