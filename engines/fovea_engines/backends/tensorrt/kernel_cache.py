"""Keeps kernels that TensorRT-RTX has compiled for a GPU beside the plan, for the next start.

The file is for one GPU and one release: others ignore it and overwrite it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from fovea_engines.backends.tensorrt.atomic import write_whole
from fovea_engines.backends.tensorrt.backend import CACHE_FILE


def known_kernels(engine: Path) -> bytes:
    """Return the cache beside an engine file; empty where it cannot be read."""
    try:
        return engine.with_name(CACHE_FILE).read_bytes()
    except OSError:
        return b""


def keep_kernels(runtime_cache: Any, engine: Path, known: bytes) -> None:
    """Write the compiled kernels of a session beside its engine file, unless they are `known`.

    If they cannot be written, the next start compiles again: a repository may be read-only.

    Args:
        runtime_cache: `IRuntimeCache` of an engine that has run; its device is current.
        engine: the engine file.
        known: from `known_kernels`.
    """
    found = runtime_cache.serialize()
    if found is not None and (kernels := bytes(memoryview(found))) != known:
        with suppress(OSError):
            write_whole(engine.with_name(CACHE_FILE), kernels)
