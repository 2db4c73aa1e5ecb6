"""Kernels that TensorRT-RTX has compiled for a GPU, kept beside the plan for the next start.

The file is of one GPU and one release: others ignore it, and write theirs in its place.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from fovea_engines.backends.tensorrt.atomic import write_whole

CACHE_FILE = "model.cache"


def known_kernels(engine: Path) -> bytes:
    """What was kept beside an engine file; nothing where that cannot be read."""
    try:
        return engine.with_name(CACHE_FILE).read_bytes()
    except OSError:
        return b""


def keep_kernels(runtime_cache: Any, engine: Path, known: bytes) -> None:
    """Write what a session has compiled beside its engine file, unless that is `known`.

    Where it cannot be written, the next start compiles again: a repository may be read-only.

    Args:
        runtime_cache: `IRuntimeCache` of an engine that has run; its device is current.
        engine: its file.
        known: from `known_kernels`.
    """
    found = runtime_cache.serialize()
    if found is not None and (kernels := bytes(memoryview(found))) != known:
        with suppress(OSError):
            write_whole(engine.with_name(CACHE_FILE), kernels)
