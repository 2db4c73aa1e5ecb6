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
"""Source of the plan. Another TensorRT or GPU rebuilds the plan from this file."""
CACHE_FILE = "model.cache"
_TURING = "75"


@dataclass(frozen=True, kw_only=True)
class TensorRTBackend(Backend):
    """Compiles plans for GPUs."""

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

    # The methods import TensorRT's modules themselves, because no other backend needs these
    # modules.

    def check(self, plan: CompilePlan) -> None:
        """Check the compute capabilities and the precision; see `Backend.check`."""
        from fovea_engines.backends.tensorrt.runtime import load_runtime

        capabilities = (plan.builder or BuilderOptions()).capabilities
        load_runtime(self.name).check_capabilities(capabilities)
        if plan.precision == "int8" and _TURING in capabilities:
            raise InvalidOption(
                "TensorRT-RTX computes INT8 convolutions in FP16 for compute capability 75, and "
                "for every other capability in the same build: build for 75 separately, with "
                "--precision fp16"
            )

    def compile(self, model: bytes | Path, folder: Path, plan: CompilePlan | None = None) -> Path:
        """Build a plan, its letterbox kernel and a copy of its source; see `Backend.compile`."""
        from fovea_engines.backends.tensorrt.engine_file import write_engine

        content = model if isinstance(model, bytes) else model.read_bytes()
        return write_engine(self.name, content, folder, plan or CompilePlan())

    def open(self, path: Path, plan: OpenPlan) -> Session:
        """Load a plan or an .engine file of Ultralytics. A GPU ignores `threads`."""
        from fovea_engines.backends.tensorrt.engine_file import open_engine

        return open_engine(self.name, path, plan.max_batch, plan.plugins, plan.streams)

    def mismatch(self, card: EngineCard) -> str | None:
        """Compare the release and the GPU of a plan with this machine; see `Backend.mismatch`.

        A plan runs only with the release that built it. NVIDIA promises more only for
        version-compatible plans (docs.nvidia.com/deeplearning/tensorrt and tensorrt-rtx, "Engine
        Compatibility"). A plan of TensorRT contains kernels for one GPU model. A plan of TensorRT
        for RTX contains no kernels. It loads on every GPU with one of its compute capabilities, and
        compiles them there.
        """
        version = self.info.version or card.backend_version
        gpu = gpu_here()
        if _release(version) == _release(card.backend_version) and self._is_for(card, gpu):
            return None
        made = f"{card.backend} {card.backend_version}{_target(card)}"
        here = f"{card.backend} {version}" + (f" and {gpu}" if gpu else "")
        return f"the engine was built with {made}, and here is {here}"

    def _is_for(self, card: EngineCard, gpu: Gpu | None) -> bool:
        if gpu is None:
            return True
        if card.builder is not None and card.builder.capabilities:
            return gpu.capability in card.builder.capabilities
        if card.gpu is None:  # a card of an older build
            return True
        return gpu.capability == card.gpu.capability if self.ahead_of_time else gpu == card.gpu

    def open_gpu_memory(self) -> GpuMemory:
        """Open GPU memory of other processes with CUDA; see `Backend.open_gpu_memory`."""
        from fovea_engines.backends.tensorrt.cuda.shared import CudaMemory

        return CudaMemory()

    def read_header(self, path: Path) -> tuple[str, dict[str, str]]:
        """Read the start of a plan, and the header that Ultralytics writes before the plan."""
        from fovea_engines.backends.tensorrt.plan_file import read_plan_file

        file = read_plan_file(path)
        return file.backend, file.metadata


def _release(version: str) -> list[str]:
    """Return major, minor and patch version, without the build number."""
    return version.split(".")[:3]


def _target(card: EngineCard) -> str:
    if card.builder is not None and card.builder.capabilities:
        return f" for compute capability {' or '.join(card.builder.capabilities)}"
    return f" for {card.gpu}" if card.gpu else ""


TENSORRT = TensorRTBackend(
    name="tensorrt",
    # "tensorrt" requires one of the other two distributions, which have the module. NVIDIA's own
    # wheel of this name has the module itself.
    distributions=("tensorrt-cu13", "tensorrt-cu12", "tensorrt"),
    extra="tensorrt",
)
TENSORRT_RTX = TensorRTBackend(
    name="tensorrt-rtx",
    distributions=("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings", "tensorrt-rtx"),
    extra="rtx",
    ahead_of_time=True,
)
