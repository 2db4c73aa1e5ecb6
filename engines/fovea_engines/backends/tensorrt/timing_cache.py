"""Keeps kernel timings between builds, so that the next build only times new kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fovea_engines.backends.tensorrt.atomic import write_whole
from fovea_engines.backends.tensorrt.compat import Runtime


def timing_cache_file(folder: Path, runtime: Runtime, device: str) -> Path:
    """Return the file for a GPU's timings, which are valid for one version of TensorRT.

    Args:
        folder: of the timing caches.
        runtime: the runtime that builds.
        device: name of the GPU.
    """
    gpu = re.sub(r"[^\w.]+", "-", device).strip("-") or "gpu"
    return folder / f"{runtime.backend}-{runtime.version}-{gpu}.timing"


@contextmanager
def timing_cache(config: Any, file: Path) -> Iterator[None]:
    """Load timings from a file into a build, and save new ones when the block succeeds.

    A file that is missing or damaged, or of another GPU, is an empty cache; one that cannot be
    written stays unchanged, since timings are not worth failing a build.

    Args:
        config: `IBuilderConfig` of a TensorRT that times.
        file: from `timing_cache_file`.
    """
    known = file.read_bytes() if file.is_file() else b""
    # This reference keeps it alive while the build runs; TensorRT holds none.
    timing_cache = config.create_timing_cache(known)
    if timing_cache is None or not config.set_timing_cache(timing_cache, ignore_mismatch=False):
        timing_cache = config.create_timing_cache(b"")
        config.set_timing_cache(timing_cache, ignore_mismatch=False)
    yield
    with suppress(OSError):
        write_whole(file, bytes(memoryview(timing_cache.serialize())))
