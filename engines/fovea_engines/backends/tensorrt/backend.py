"""Describes the backends TensorRT and TensorRT for RTX, without importing their runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fovea_engines.backends.backend import Backend, CompilePlan, Encoding, GpuMemory, OpenPlan
from fovea_engines.device import Gpu, gpu_here
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.options import BuilderOptions
from fovea_engines.session import Session
from fovea_preprocess.errors import InvalidOption

ENGINE_FILE = "model.plan"
KEPT_FILE = "prepared.onnx"
"""Name of the file with the graph of a plan.

A machine with another TensorRT or GPU rebuilds the plan from this file.
"""
CACHE_FILE = "model.cache"
_TURING = "75"


@dataclass(frozen=True, kw_only=True)
class TensorRTBackend(Backend):
    """Compiles plans for NVIDIA GPUs, and runs them."""

    suffixes: tuple[str, ...] = (".plan", ".engine")
    any_suffix: bool = True
    platform: str = "tensorrt_plan"
    encoding: Encoding = Encoding.SIGNED
    on_gpu: bool = True
    fuses: bool = True
    emulated: bool = True
    takes_builder: bool = True
    runs_code: bool = True
    kept_file: str = KEPT_FILE
    cache_file: str = CACHE_FILE

    # Each method imports the modules that it needs. They import packages such as pycuda, which a
    # machine without a GPU does not have.

    def check(self, plan: CompilePlan) -> None:
        """Check the compute capabilities and the precision; see `Backend.check`."""
        from fovea_engines.backends.tensorrt.runtime import load_runtime

        capabilities = (plan.builder or BuilderOptions()).capabilities
        load_runtime(self.name).check_capabilities(capabilities)
        if plan.precision == "int8" and _TURING in capabilities:
            raise InvalidOption(
                "TensorRT-RTX computes INT8 convolutions in FP16 for compute capability 75, and "
                "would then do so for all other capabilities of the same build: build for 75 "
                "separately, with --precision fp16"
            )

    def compile(self, model: bytes | Path, folder: Path, plan: CompilePlan | None = None) -> Path:
        """Write a plan, its letterbox kernel and a copy of its graph into a directory.

        See `Backend.compile` for the arguments and errors.
        """
        from fovea_engines.backends.tensorrt.engine_file import write_engine

        content = model if isinstance(model, bytes) else model.read_bytes()
        return write_engine(self.name, content, folder, plan or CompilePlan())

    def open(self, path: Path, plan: OpenPlan) -> Session:
        """Load a plan, or an .engine file that Ultralytics wrote.

        `OpenPlan.threads` has no effect.
        """
        from fovea_engines.backends.tensorrt.engine_file import open_engine

        return open_engine(self.name, path, plan.max_batch, plan.plugins, plan.streams)

    def mismatch(self, card: EngineCard) -> str | None:
        """Compare a plan's TensorRT release and GPU with this machine; see `Backend.mismatch`.

        A plan runs only with the release of TensorRT that built it. NVIDIA supports other releases
        only for version-compatible plans (docs.nvidia.com/deeplearning/tensorrt and tensorrt-rtx,
        "Engine Compatibility"). A plan of TensorRT contains kernels for one GPU model. A plan of
        TensorRT for RTX contains no kernels: it loads on every GPU with one of the plan's compute
        capabilities, and the kernels are compiled there.
        """
        version = self.info.version or card.backend_version
        gpu = gpu_here()
        if _release(version) == _release(card.backend_version) and self._is_for(card, gpu):
            return None
        made = f"{card.backend} {card.backend_version}{_target(card)}"
        here = f"{card.backend} {version}" + (f" and {gpu}" if gpu else "")
        return f"the engine was built with {made}, but this machine has {here}"

    def _is_for(self, card: EngineCard, gpu: Gpu | None) -> bool:
        if gpu is None:
            return True
        if card.builder is not None and card.builder.capabilities:
            return gpu.capability in card.builder.capabilities
        if card.gpu is None:  # older versions of Fovea wrote no GPU into the card
            return True
        return gpu.capability == card.gpu.capability if self.ahead_of_time else gpu == card.gpu

    def open_gpu_memory(self) -> GpuMemory:
        """Return an object that opens GPU memory of other processes with CUDA."""
        from fovea_engines.backends.tensorrt.cuda.shared import CudaMemory

        return CudaMemory()

    def read_header(self, path: Path) -> tuple[str, dict[str, str]]:
        """Return the backend of a plan, and the metadata that Ultralytics writes before a plan."""
        from fovea_engines.backends.tensorrt.plan_file import read_plan_file

        file = read_plan_file(path)
        return file.backend, file.metadata


def _release(version: str) -> list[str]:
    """Return the major, minor and patch version, without the build number."""
    return version.split(".")[:3]


def _target(card: EngineCard) -> str:
    if card.builder is not None and card.builder.capabilities:
        return f" for compute capability {' or '.join(card.builder.capabilities)}"
    return f" for {card.gpu}" if card.gpu else ""


TENSORRT = TensorRTBackend(
    name="tensorrt",
    # On PyPI, "tensorrt" has no module itself and requires one of the other two distributions. The
    # wheel "tensorrt" in NVIDIA's archives contains the module.
    distributions=("tensorrt-cu13", "tensorrt-cu12", "tensorrt"),
    extra="tensorrt",
)
TENSORRT_RTX = TensorRTBackend(
    name="tensorrt-rtx",
    distributions=("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings", "tensorrt-rtx"),
    extra="rtx",
    ahead_of_time=True,
)
