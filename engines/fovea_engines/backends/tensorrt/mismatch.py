"""Whether a TensorRT engine was built for what is here, as its card tells without loading it."""

from __future__ import annotations

from fovea_engines.backends.registry import TENSORRT_BACKENDS, available_backends
from fovea_engines.device import Gpu, gpu_here
from fovea_engines.repository.card import EngineCard


def mismatch(card: EngineCard) -> str | None:
    """Why an engine cannot run here, as one sentence; None where it can, as far as its card knows.

    A plan runs with the release that made it: NVIDIA promises more only of what is built to be
    version-compatible (docs.nvidia.com/deeplearning/tensorrt and tensorrt-rtx, "Engine
    Compatibility"). One of TensorRT holds kernels that were timed on one model of GPU; one of
    TensorRT for RTX has none until it is loaded, on any GPU of the capabilities that it names.

    A runtime or a GPU that is not here at all is no mismatch: opening the engine says so.
    """
    if card.backend not in TENSORRT_BACKENDS:
        return None
    version = _installed(card.backend) or card.backend_version
    gpu = gpu_here()
    if _release(version) == _release(card.backend_version) and _is_for(card, gpu):
        return None
    made = f"{card.backend} {card.backend_version}{_target(card)}"
    here = f"{card.backend} {version}" + (f" and {gpu}" if gpu else "")
    return f"the engine was built with {made}, and here is {here}"


def _installed(backend: str) -> str | None:
    return next(info.version for info in available_backends() if info.name == backend)


def _release(version: str) -> list[str]:
    """Major, minor and patch: what comes after is the build of a release."""
    return version.split(".")[:3]


def _is_for(card: EngineCard, gpu: Gpu | None) -> bool:
    if gpu is None:
        return True
    if card.builder is not None and card.builder.capabilities:
        return gpu.capability in card.builder.capabilities
    if card.gpu is None:  # a card of before there was the field
        return True
    return gpu == card.gpu if card.backend == "tensorrt" else gpu.capability == card.gpu.capability


def _target(card: EngineCard) -> str:
    if card.builder is not None and card.builder.capabilities:
        return f" for compute capability {' or '.join(card.builder.capabilities)}"
    return f" for {card.gpu}" if card.gpu else ""
