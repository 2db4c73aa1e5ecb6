"""How fast kernels were, remembered from build to build: the next one times only what is new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fovea_engines.backends.tensorrt.atomic import write_whole
from fovea_engines.backends.tensorrt.compat import Runtime


def timing_cache_file(folder: Path, runtime: Runtime, device: str) -> Path:
    """Where the timings of a GPU are kept; they hold for one version of TensorRT.

    Args:
        folder: of the timing caches.
        runtime: that builds.
        device: name of the GPU.
    """
    gpu = re.sub(r"[^\w.]+", "-", device).strip("-") or "gpu"
    return folder / f"{runtime.backend}-{runtime.version}-{gpu}.timing"


@contextmanager
def timing_cache(config: Any, file: Path) -> Iterator[None]:
    """Let a build know the timings in a file, and add its own when the block ends well.

    A file that is missing or damaged, or of another GPU, is an empty cache; one that cannot be
    written stays as it is, since timings are not worth a build.

    Args:
        config: `IBuilderConfig` of a TensorRT that times.
        file: from `timing_cache_file`.
    """
    known = file.read_bytes() if file.is_file() else b""
    # Held here while the build runs: TensorRT does not keep it.
    timing_cache = config.create_timing_cache(known)
    if timing_cache is None or not config.set_timing_cache(timing_cache, ignore_mismatch=False):
        timing_cache = config.create_timing_cache(b"")
        config.set_timing_cache(timing_cache, ignore_mismatch=False)
    yield
    with suppress(OSError):
        write_whole(file, bytes(memoryview(timing_cache.serialize())))
