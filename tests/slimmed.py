"""Simplified graphs, in an engine's opset, that the processes of a run share.

To make one is most of a build.
"""

import fcntl
import os
from hashlib import sha256
from pathlib import Path

import onnx

from fovea_engines.graph import normalise

_slim, _convert = normalise._slim, normalise._convert_opset
shared_folder: Path | None = None
"""Where this process has them."""


def share_slimmed(folder: Path) -> None:
    """Let this process simplify each graph once, and take those that others left in the folder."""

    def slimmed(model: onnx.ModelProto) -> onnx.ModelProto:
        digest = sha256(model.SerializeToString(deterministic=True)).hexdigest()
        kept = folder / f"slim-{digest}.onnx"
        # Files of tests that build the same models begin together: one waits for the other.
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                new = kept.with_suffix(f".{os.getpid()}")
                # A graph that cannot be converted is tried, and remarked upon, by `normalise`.
                new.write_bytes(_convert(_slim(model), lambda _: None).SerializeToString())
                new.replace(kept)
        return onnx.load_model(kept)

    global shared_folder
    normalise._slim, shared_folder = slimmed, folder
