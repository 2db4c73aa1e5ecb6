"""Simplified graphs, in an engine's opset, that the processes of a run share.

To make one is most of a build.
"""

import fcntl
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import onnx

from fovea_engines.onnx_graph import normalise

_slim, _convert = normalise._slim, normalise._convert_opset
shared_folder: Path | None = None
"""Where this process has them."""


def once(file: Path, make: Callable[[], bytes]) -> bytes:
    """Return the bytes of a file, which the first process that asks makes."""
    # Files of tests that build the same models begin together: one waits for the other.
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            new = file.with_suffix(f".{os.getpid()}")
            new.write_bytes(make())
            new.replace(file)
    return file.read_bytes()


def share_slimmed(folder: Path) -> None:
    """Let this process simplify each graph once, and take those that others left in the folder."""

    def slimmed(model: onnx.ModelProto) -> onnx.ModelProto:
        digest = sha256(model.SerializeToString(deterministic=True)).hexdigest()
        # A graph that cannot be converted is tried, and remarked upon, by `normalise`.
        made = once(
            folder / f"slim-{digest}.onnx",
            lambda: _convert(_slim(model), lambda _: None).SerializeToString(),
        )
        return onnx.load_model_from_string(made)

    global shared_folder
    normalise._slim, shared_folder = slimmed, folder
