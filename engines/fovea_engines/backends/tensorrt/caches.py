"""Caches measurements and compiled kernels of a build or start, to speed up the next one.

Several processes may read and write a file at the same time. A file that is missing, damaged or
read-only never fails a build or start.
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
    """Return the user's directory for kernel timings and build durations.

    All repositories share it.

    A user without a home directory, as in pods of OpenShift, gets a new temporary directory.
    """
    try:
        return Path.home() / ".cache" / "fovea" / "tensorrt"
    except RuntimeError:
        return Path(mkdtemp(prefix="fovea-tensorrt-"))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; create its directory if needed.

    Raises:
        OSError: the file cannot be written; its previous content stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:
        new = Path(file.name)
        try:
            file.write(content)
            file.flush()
            new.chmod(0o644)  # readable for processes of other users
            os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def timing_cache_file(folder: Path, runtime: Runtime, device: str) -> Path:
    """Return the file with a GPU's kernel timings. They are valid for one version of TensorRT."""
    gpu = re.sub(r"[^\w.]+", "-", device).strip("-") or "gpu"
    return folder / f"{runtime.backend}-{runtime.version}-{gpu}.timing"


@contextmanager
def timing_cache(config: Any, file: Path) -> Iterator[None]:
    """Load kernel timings from a file into a build, and save new timings if the block succeeds.

    The next build then measures only new kernels. The file of another GPU counts as an empty cache.
    """
    known = file.read_bytes() if file.is_file() else b""
    # This reference keeps the cache alive while the build runs; TensorRT holds none.
    timing_cache = config.create_timing_cache(known)
    if timing_cache is None or not config.set_timing_cache(timing_cache, ignore_mismatch=False):
        timing_cache = config.create_timing_cache(b"")
        config.set_timing_cache(timing_cache, ignore_mismatch=False)
    yield
    if (found := timing_cache.serialize()) is not None:
        with suppress(OSError):
            write_whole(file, bytes(memoryview(found)))


def read_kernels(engine: Path) -> bytes:
    """Return the kernels that TensorRT for RTX compiled for an engine file, or b""."""
    found = [file for file in _kernel_files(engine) if file.is_file()]
    try:
        return max(found, key=lambda file: file.stat().st_mtime).read_bytes() if found else b""
    except OSError:
        return b""


def keep_kernels(runtime_cache: Any, engine: Path, known: bytes) -> None:
    """Write the compiled kernels of a session beside its engine file, unless they equal `known`.

    If that directory is read-only, as in some containers, the kernels go to the user's cache
    directory.
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
    """Return the duration of the latest build with a key in seconds, or None."""
    return _durations(builds).get(key)


def record_duration(builds: Path, key: str, seconds: float) -> None:
    """Add the duration of a build to the file, and drop the oldest entries."""
    newest = {key: round(seconds, 1)}
    others = [(other, took) for other, took in _durations(builds).items() if other != key]
    with suppress(OSError):
        write_whole(builds, json.dumps(newest | dict(others[: _MAX_BUILDS - 1])).encode())


def _durations(builds: Path) -> dict[str, float]:
    """Return the durations of all builds in seconds, newest first."""
    try:
        return _DURATIONS.validate_json(builds.read_bytes())
    except (OSError, ValidationError):
        return {}


def duration(seconds: float) -> str:
    """Format seconds, e.g. "3 min 12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
