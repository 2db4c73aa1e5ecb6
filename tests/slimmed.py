"""Simplified graphs, in an engine's opset, and what `prepare` makes of them, shared by the
processes of a run.

To make one is most of a build.
"""

import fcntl
import os
import pickle
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import onnx

from fovea_engines.build.plan import BuildPlan
from fovea_engines.build.prepare import PreparedModel, prepare
from fovea_engines.graph import normalise
from fovea_engines.progress import Progress

_slim, _convert = normalise._slim, normalise._convert_opset
shared_folder: Path | None = None
"""Where this process has them."""


def once(file: Path, make: Callable[[], bytes]) -> bytes:
    """Return what the first process to ask has made."""
    # Files of tests that build the same models begin together: one waits for the other.
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            new = file.with_suffix(f".{os.getpid()}")
            new.write_bytes(make())
            new.replace(file)
    return file.read_bytes()


def prepare_once(plan: BuildPlan, progress: Progress) -> PreparedModel:
    """As `prepare`, for plans that differ in source, size, preprocessing and images alone."""
    assert shared_folder is not None
    images = plan.images and sorted(file.name for file in plan.images.iterdir())
    asked = repr((plan.source, plan.size, plan.preprocess, images))
    kept = shared_folder / f"prepared-{sha256(asked.encode()).hexdigest()}.pickle"
    return pickle.loads(once(kept, lambda: pickle.dumps(prepare(plan, progress))))


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
