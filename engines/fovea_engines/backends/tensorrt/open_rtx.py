"""Opens engines of TensorRT for RTX, which are built anywhere and compiled when loaded."""

from __future__ import annotations

from pathlib import Path

from fovea_engines.backends.tensorrt.engine_file import ENGINE_FILE, open_engine
from fovea_engines.session import Session

__all__ = ["ENGINE_FILE", "open_session"]


def open_session(path: Path, *, max_batch: int, threads: int | None = None) -> Session:
    """Load a plan; see `open_engine`. A GPU ignores `threads`."""
    return open_engine("tensorrt-rtx", path, max_batch=max_batch)
