"""Keeps what a build or a start has measured or compiled, so that the next one is faster.

Each file may be read and written by several processes at once, and may be missing, damaged or
read-only: none of that fails a build or a start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, mkdtemp
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fovea_engines.backends.tensorrt.backend import CACHE_FILE
from fovea_engines.backends.tensorrt.runtime import Runtime

log = logging.getLogger(__name__)

_MAX_BUILDS = 256
_DURATIONS: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])


def cache_folder() -> Path:
    """Return the user's folder for timings and durations, which hold for all repositories.

    A user without a home, as in pods of OpenShift, gets a new one.
    """
    try:
        return Path.home() / ".cache" / "fovea" / "tensorrt"
    except RuntimeError:
        return Path(mkdtemp(prefix="fovea-tensorrt-"))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; creates its folder.

    Raises:
        OSError: the file cannot be written; its previous content is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:
        new = Path(file.name)
        try:
            file.write(content)
            file.flush()
            new.chmod(0o644)  # readable for other users' processes
            os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def timing_cache_file(folder: Path, runtime: Runtime, device: str) -> Path:
    """Return the file for a GPU's timings, which are valid for one version of TensorRT."""
    gpu = re.sub(r"[^\w.]+", "-", device).strip("-") or "gpu"
    return folder / f"{runtime.backend}-{runtime.version}-{gpu}.timing"


@contextmanager
def timing_cache(config: Any, file: Path) -> Iterator[None]:
    """Load kernel timings from a file into a build, and save new ones when the block succeeds.

    The next build then only times new kernels. A file of another GPU is an empty cache.
    """
    known = file.read_bytes() if file.is_file() else b""
    # This reference keeps it alive while the build runs; TensorRT holds none.
    timing_cache = config.create_timing_cache(known)
    if timing_cache is None or not config.set_timing_cache(timing_cache, ignore_mismatch=False):
        timing_cache = config.create_timing_cache(b"")
        config.set_timing_cache(timing_cache, ignore_mismatch=False)
    yield
    if (found := timing_cache.serialize()) is not None:
        with suppress(OSError):
            write_whole(file, bytes(memoryview(found)))


def read_kernels(engine: Path) -> bytes:
    """Return the kernels that TensorRT-RTX has compiled for an engine file; empty without any."""
    found = [file for file in _kernel_files(engine) if file.is_file()]
    try:
        return max(found, key=lambda file: file.stat().st_mtime).read_bytes() if found else b""
    except OSError:
        return b""


def keep_kernels(runtime_cache: Any, engine: Path, known: bytes) -> None:
    """Write a session's compiled kernels beside its engine file, unless they are `known`.

    Where that cannot be written, as in a container whose repository is read-only, they go to the
    user's folder.
    """
    found = runtime_cache.serialize()
    if found is None or (kernels := bytes(memoryview(found))) == known:
        return
    for file in _kernel_files(engine):
        try:
            write_whole(file, kernels)
        except OSError as error:
            log.info("kernels cannot be kept in %s: %s", file, error.strerror)
        else:
            return
    log.warning("the kernels of %s cannot be kept: every start compiles them again", engine)


def _kernel_files(engine: Path) -> tuple[Path, Path]:
    name = hashlib.sha256(str(engine.resolve()).encode()).hexdigest()[:16]
    return engine.with_name(CACHE_FILE), cache_folder() / f"{name}.cache"


def last_duration(builds: Path, key: str) -> float | None:
    """Return the seconds of the latest build with that key; None without one."""
    return _durations(builds).get(key)


def record_duration(builds: Path, key: str, seconds: float) -> None:
    """Add a build to the file; its oldest are dropped."""
    newest = {key: round(seconds, 1)}
    others = [(other, took) for other, took in _durations(builds).items() if other != key]
    with suppress(OSError):
        write_whole(builds, json.dumps(newest | dict(others[: _MAX_BUILDS - 1])).encode())


def _durations(builds: Path) -> dict[str, float]:
    """Return the seconds of each build, newest first."""
    try:
        return _DURATIONS.validate_json(builds.read_bytes())
    except (OSError, ValidationError):
        return {}


def duration(seconds: float) -> str:
    """Format seconds as "3 min 12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
