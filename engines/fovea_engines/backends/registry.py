"""Lists the backends and opens engines with them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from fovea_engines.backends.installing import install, install_extra
from fovea_engines.session import Session
from fovea_preprocess.errors import BackendUnavailable, InvalidModel

CPU_BACKENDS = ("onnxruntime", "openvino")
DEFAULT_CPU_BACKEND = "openvino"
REFERENCE_BACKEND = "onnxruntime"
"""The backend that computes every graph as it is written."""
TENSORRT_BACKENDS = ("tensorrt", "tensorrt-rtx")

# Backend -> its module in this folder, imported on first use. It has `ENGINE_FILE`, `open_session`
# and, except for TensorRT, whose builds take options (`write_engine`), `engine_from_onnx`.
_MODULES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "tensorrt.open",
    "tensorrt-rtx": "tensorrt.open_rtx",
}
# Backend -> the distribution that contains its runtime.
DISTRIBUTIONS = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "tensorrt": "tensorrt",
    "tensorrt-rtx": "tensorrt-rtx-cu13-bindings",
}
_EXTRAS = {"tensorrt": "tensorrt", "tensorrt-rtx": "rtx"}


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """One backend on this machine.

    Attributes:
        name: as in `open_session`.
        version: version of its runtime; None when that is not installed.
        problem: the reason why it cannot be used and what to do; None when it can.
    """

    name: str
    version: str | None
    problem: str | None


def open_session(
    backend: str, path: Path, *, max_batch: int, threads: int | None = None
) -> Session:
    """Load an engine.

    Args:
        backend: a key of `DISTRIBUTIONS`.
        path: the engine file.
        max_batch: most rows of a call; 0 when the model has no batch dimension.
        threads: CPU cores to use; None takes all this process may use.

    Raises:
        BackendUnavailable: there is no such backend, or its runtime is not installed.
        InvalidModel: the file is missing, or not an engine of this backend.
    """
    if backend not in DISTRIBUTIONS:
        raise BackendUnavailable(
            f"there is no backend {backend!r}; the backends are {', '.join(DISTRIBUTIONS)}"
        )
    if not path.is_file():
        raise InvalidModel(f"there is no engine at {path}")
    try:
        session: Session = backend_module(backend).open_session(
            path, max_batch=max_batch, threads=threads
        )
    except ImportError as error:
        raise BackendUnavailable(
            f"backend {backend!r} cannot be used ({error}): {install_backend(backend)}"
        ) from error
    return session


def backend_module(backend: str) -> Any:
    """Import the module of a backend, without its runtime."""
    return import_module(f"fovea_engines.backends.{_MODULES[backend]}")


def available_backends() -> tuple[BackendInfo, ...]:
    """Return every backend with its version or problem, without importing any runtime."""
    return tuple(_info(name, distribution) for name, distribution in DISTRIBUTIONS.items())


def _info(name: str, distribution: str) -> BackendInfo:
    try:
        return BackendInfo(name, metadata.version(distribution), None)
    except metadata.PackageNotFoundError:
        return BackendInfo(name, None, f"not installed: {install_backend(name)}")


def install_backend(backend: str) -> str:
    """Return the command that installs the runtime of a backend."""
    if backend in _EXTRAS:
        return install_extra(_EXTRAS[backend])
    return install(DISTRIBUTIONS[backend])
