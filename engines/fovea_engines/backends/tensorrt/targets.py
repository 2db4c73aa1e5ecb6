"""Checks which GPU and which release of TensorRT an engine is for."""

from __future__ import annotations

from collections.abc import Sequence

from fovea_engines.backends.registry import TENSORRT_BACKENDS, available_backends
from fovea_engines.backends.tensorrt.runtime import Runtime, load_runtime
from fovea_engines.device import Gpu, gpu_here
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.options import BuilderOptions
from fovea_preprocess.errors import InvalidOption

_TURING = "75"
_H100 = {"90": "; for an H100 or H200 take --backend tensorrt on a machine that has one"}


def parse_capabilities(text: str) -> tuple[str, ...]:
    """Parse compute capabilities such as "80,89" or "8.0,8.9", without duplicates."""
    names = (part.strip().lower().removeprefix("sm").lstrip("_") for part in text.split(","))
    return tuple(dict.fromkeys(name.replace(".", "") for name in names))


def check_target(backend: str, options: BuilderOptions, precision: str) -> None:
    """Check that this machine can build a plan for a target.

    Raises:
        BackendUnavailable: the backend is not installed.
        InvalidOption: it cannot build for that GPU, or in that precision.
    """
    check_capabilities(options.capabilities, load_runtime(backend))
    if precision == "int8" and _TURING in options.capabilities:
        raise InvalidOption(
            "TensorRT-RTX computes INT8 convolutions in FP16 for compute capability 75, and then "
            "for all it builds for together: take --precision fp16 for 75, in a build of its own"
        )


def check_capabilities(capabilities: Sequence[str], runtime: Runtime) -> None:
    """Check that TensorRT can build for these; for this machine's GPU if there are none.

    Raises:
        InvalidOption: it cannot; the message lists the supported ones.
    """
    known = runtime.compute_capabilities
    if not known:
        if capabilities:
            raise InvalidOption(
                f"TensorRT {runtime.version} builds for the GPU that is here: leave "
                "--compute-capability out, or build with --backend tensorrt-rtx"
            )
        return
    if not capabilities and gpu_here() is None:
        raise InvalidOption(
            "there is no GPU here to build for: say for which with --compute-capability, of "
            f"{', '.join(known)}, e.g. 80,89"
        )
    for capability in capabilities:
        if capability not in known:
            raise InvalidOption(
                f"TensorRT-RTX {runtime.version} does not build for compute capability "
                f"{capability!r}: it does for {', '.join(known)}" + _H100.get(capability, "")
            )


def mismatch(card: EngineCard) -> str | None:
    """Return the reason why an engine cannot run here; None where its card shows none.

    A plan runs with the release that built it: NVIDIA promises more only for version-compatible
    plans (docs.nvidia.com/deeplearning/tensorrt and tensorrt-rtx, "Engine Compatibility"). A plan
    of TensorRT holds kernels that were timed on one model of GPU; one of TensorRT for RTX has none
    until it is loaded, on any GPU of the capabilities that it names.

    A missing runtime or GPU is no mismatch: opening the engine reports it.
    """
    if card.backend not in TENSORRT_BACKENDS:
        return None
    version = _installed(card.backend) or card.backend_version
    gpu = gpu_here()
    if _release(version) == _release(card.backend_version) and _is_for(card, gpu):
        return None
    made = f"{card.backend} {card.backend_version}{_target_text(card)}"
    here = f"{card.backend} {version}" + (f" and {gpu}" if gpu else "")
    return f"the engine was built with {made}, and here is {here}"


def _installed(backend: str) -> str | None:
    return next(info.version for info in available_backends() if info.name == backend)


def _release(version: str) -> list[str]:
    """Return major, minor and patch, without the build number."""
    return version.split(".")[:3]


def _is_for(card: EngineCard, gpu: Gpu | None) -> bool:
    if gpu is None:
        return True
    if card.builder is not None and card.builder.capabilities:
        return gpu.capability in card.builder.capabilities
    if card.gpu is None:  # a card of an older build
        return True
    return gpu == card.gpu if card.backend == "tensorrt" else gpu.capability == card.gpu.capability


def _target_text(card: EngineCard) -> str:
    if card.builder is not None and card.builder.capabilities:
        return f" for compute capability {' or '.join(card.builder.capabilities)}"
    return f" for {card.gpu}" if card.gpu else ""
