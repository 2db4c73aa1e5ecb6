"""Lists the backends, and opens engines with them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from fovea_engines.backends.backend import Backend, BackendInfo, GpuMemory, OpenPlan
from fovea_engines.backends.onnxruntime import ONNXRUNTIME
from fovea_engines.backends.openvino import OPENVINO
from fovea_engines.backends.tensorrt.backend import TENSORRT, TENSORRT_RTX
from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.figures import Precision
from fovea_engines.repository.options import Plugin
from fovea_engines.session import Session
from fovea_preprocess.entry_points import Group, describe_entry, entry_points, load
from fovea_preprocess.errors import BackendUnavailable, InvalidModel, Unavailable

log = logging.getLogger(__name__)

_OWN: Mapping[str, Backend] = {
    one.name: one for one in (ONNXRUNTIME, OPENVINO, TENSORRT, TENSORRT_RTX)
}


class _Backends(Mapping[str, Backend]):
    """A mapping from the name of each backend to the backend.

    The first backend that supports a file's suffix is the default for this suffix.

    Backends of other packages are imported at the first access. They cannot be imported earlier,
    because those packages may import this module.
    """

    @cached_property
    def _backends(self) -> dict[str, Backend]:
        found = dict(_OWN)
        for name, point in entry_points(Group.BACKENDS).items():
            if name in found:
                log.warning(
                    "backend %s is ignored: another backend has the same name",
                    describe_entry(point),
                )
                continue
            try:
                backend = load(Group.BACKENDS, name)
            except Unavailable as error:
                log.warning("backend %s", error)
                continue
            if isinstance(backend, Backend) and backend.name == name:
                found[name] = backend
            else:
                log.warning(
                    "%r is ignored: its entry point is not a Backend object with this name", name
                )
        return found

    def __getitem__(self, name: str) -> Backend:
        return self._backends[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._backends)

    def __len__(self) -> int:
        return len(self._backends)


BACKENDS = _Backends()
DEFAULT_CPU_BACKEND = OPENVINO.name
REFERENCE_BACKEND = ONNXRUNTIME.name
"""Name of the backend that runs every graph without changing it."""
CPU_BACKENDS = (ONNXRUNTIME.name, OPENVINO.name)
"""Names of the backends from which `--backend auto` chooses."""
BACKEND_NAMES = tuple(dict.fromkeys((*_OWN, *entry_points(Group.BACKENDS))))
"""Names of all backends. They are read without importing the packages that add backends."""


def get_backend(name: str) -> Backend:
    """Return the backend with a name.

    Raises:
        BackendUnavailable: there is no backend with this name.
        Unavailable: the package that adds the backend cannot be imported.
    """
    if name in BACKENDS:
        return BACKENDS[name]
    if name in entry_points(Group.BACKENDS):
        load(Group.BACKENDS, name)
    raise BackendUnavailable(
        f"unknown backend {name!r}; the backends are {', '.join(BACKENDS)}. Install the package "
        "that adds it"
    )


def open_session(
    backend: str,
    path: Path,
    *,
    max_batch: int,
    threads: int | None = None,
    streams: int | None = None,
    plugins: tuple[Plugin, ...] = (),
    precision: Precision = "fp32",
) -> Session:
    """Load an engine file, and return a session that runs it.

    Args:
        backend: name of the backend.
        path: engine file.
        max_batch: largest batch size; 0 if the model has no batch dimension.
        threads: number of CPU cores; see `OpenPlan`.
        streams: number of parallel calls; see `OpenPlan`.
        plugins: plugin libraries of a TensorRT engine.
        precision: precision of the engine; see `OpenPlan`.

    Raises:
        BackendUnavailable: the backend does not exist, its runtime is not installed, or it does not
            support the precision on this machine.
        InvalidModel: the file is missing, or the runtime cannot load it.
    """
    chosen = get_backend(backend)
    if not path.is_file():
        raise InvalidModel(f"the engine file {path} does not exist")
    try:
        return chosen.open(path, OpenPlan(max_batch, threads, streams, plugins, precision))
    except ImportError as error:
        raise BackendUnavailable(
            f"backend {backend!r} cannot be used ({error}): {chosen.installation}"
        ) from error


def mismatch(card: EngineCard) -> str | None:
    """Return the reason why the engine of a card cannot run on this machine, or None if it can."""
    return get_backend(card.backend).mismatch(card)


def backends_for(file: str) -> tuple[Backend, ...]:
    """Return the backends that can open an engine file with this name. The default comes first."""
    suffix = Path(file).suffix
    found = tuple(one for one in BACKENDS.values() if suffix in one.suffixes)
    return found or tuple(one for one in BACKENDS.values() if one.any_suffix)


def open_gpu_memory() -> GpuMemory:
    """Return an object that opens GPU memory of other processes.

    Raises:
        BackendUnavailable: no backend on this machine supports GPU memory of other processes.
    """
    for backend in BACKENDS.values():
        if backend.on_gpu:
            with suppress(BackendUnavailable):
                return backend.open_gpu_memory()
    raise BackendUnavailable("no installed backend can open GPU memory")


def available_backends() -> tuple[BackendInfo, ...]:
    """Return the state of every backend on this machine, without importing any runtime."""
    return tuple(backend.info for backend in BACKENDS.values())
