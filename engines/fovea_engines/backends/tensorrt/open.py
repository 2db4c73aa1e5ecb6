"""TensorRT on an NVIDIA GPU, whose engines are built on the GPU that runs them."""

from __future__ import annotations

from pathlib import Path

from fovea_engines.backends.tensorrt.engine_file import ENGINE_FILE, open_engine
from fovea_engines.session import Session

__all__ = ["ENGINE_FILE", "open_session"]


def open_session(path: Path, *, max_batch: int, threads: int | None = None) -> Session:
    """Load a plan; see `open_engine`. Of `threads` a GPU needs none."""
    return open_engine("tensorrt", path, max_batch=max_batch)
