"""Caches kernel timings, build durations and compiled kernels in files.

The caches make the next build or the next start of a server faster.

Several processes may read and write a file at the same time. A build or start succeeds even if a
file is missing, damaged or read-only.
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
    """Return the user's cache directory for TensorRT. All repositories share this directory.

    A user without a home directory, e.g. in a pod of OpenShift, gets a new temporary directory.
    """
    try:
        return Path.home() / ".cache" / "fovea" / "tensorrt"
    except RuntimeError:
        return Path(mkdtemp(prefix="fovea-tensorrt-"))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically. Create its directory if it does not exist.

    Raises:
        OSError: the file cannot be written. Its previous content is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent, delete=False) as file:
        new = Path(file.name)
        try:
            file.write(content)
            file.flush()
            new.chmod(0o644)  # lets processes of other users read the file
            os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def timing_cache_file(folder: Path, runtime: Runtime, device: str) -> Path:
    """Return the path of the file with kernel timings for one GPU and one version of TensorRT."""
    gpu = re.sub(r"[^\w.]+", "-", device).strip("-") or "gpu"
    return folder / f"{runtime.backend}-{runtime.version}-{gpu}.timing"


@contextmanager
def timing_cache(config: Any, file: Path) -> Iterator[None]:
    """Load kernel timings from a file into a build, and save all timings after the build.

    The next build then measures only kernels that are not in the file. If the file belongs to
    another GPU or is damaged, the build starts with an empty cache. If the `with` block raises, the
    file stays unchanged.
    """
    known = file.read_bytes() if file.is_file() else b""
    # This variable keeps the cache alive during the build, because TensorRT does not keep a
    # reference.
    timing_cache = config.create_timing_cache(known)
    if timing_cache is None or not config.set_timing_cache(timing_cache, ignore_mismatch=False):
        timing_cache = config.create_timing_cache(b"")
        config.set_timing_cache(timing_cache, ignore_mismatch=False)
    yield
    if (found := timing_cache.serialize()) is not None:
        with suppress(OSError):
            write_whole(file, bytes(memoryview(found)))


def read_kernels(engine: Path) -> bytes:
    """Return the compiled kernels that TensorRT for RTX stored for an engine file.

    If there are no stored kernels, return b"".
    """
    found = [file for file in _kernel_files(engine) if file.is_file()]
    try:
        return max(found, key=lambda file: file.stat().st_mtime).read_bytes() if found else b""
    except OSError:
        return b""


def keep_kernels(runtime_cache: Any, engine: Path, known: bytes) -> None:
    """Write the compiled kernels of a session to a file beside its engine file.

    `runtime_cache` is the session's `IRuntimeCache`. No file is written if the kernels equal
    `known`.

    If the engine's directory is read-only, e.g. in a container, the kernels are written to the
    user's cache directory.
    """
    found = runtime_cache.serialize()
    if found is None or (kernels := bytes(memoryview(found))) == known:
        return
    for file in _kernel_files(engine):
        try:
            write_whole(file, kernels)
        except OSError as error:
            log.info("cannot write compiled kernels to %s: %s", file, error.strerror)
        else:
            return
    log.warning(
        "the compiled kernels of %s cannot be stored: each start will compile them again", engine
    )


def _kernel_files(engine: Path) -> tuple[Path, Path]:
    name = hashlib.sha256(str(engine.resolve()).encode()).hexdigest()[:16]
    return engine.with_name(CACHE_FILE), cache_folder() / f"{name}.cache"


def last_duration(builds: Path, key: str) -> float | None:
    """Return the duration, in seconds, of the latest build with this key.

    `builds` is the file with all durations. If it has no build with this key, return None.
    """
    return _durations(builds).get(key)


def record_duration(builds: Path, key: str, seconds: float) -> None:
    """Add a build's duration in seconds to the file `builds`, and remove the oldest entries."""
    newest = {key: round(seconds, 1)}
    others = [(other, took) for other, took in _durations(builds).items() if other != key]
    with suppress(OSError):
        write_whole(builds, json.dumps(newest | dict(others[: _MAX_BUILDS - 1])).encode())


def _durations(builds: Path) -> dict[str, float]:
    """Return a mapping from the key of each build to its duration in seconds, the newest first."""
    try:
        return _DURATIONS.validate_json(builds.read_bytes())
    except (OSError, ValidationError):
        return {}


def duration(seconds: float) -> str:
    """Format a duration in seconds as text, e.g. "3 min 12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
