"""Checks by its card if a TensorRT engine was built for this machine."""

from __future__ import annotations

from fovea_engines.backends.registry import TENSORRT_BACKENDS, available_backends
from fovea_engines.device import Gpu, gpu_here
from fovea_engines.repository.card import EngineCard


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
    made = f"{card.backend} {card.backend_version}{_target(card)}"
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


def _target(card: EngineCard) -> str:
    if card.builder is not None and card.builder.capabilities:
        return f" for compute capability {' or '.join(card.builder.capabilities)}"
    return f" for {card.gpu}" if card.gpu else ""
