"""Version folders with engines of TensorRT for RTX, built where there is no GPU."""

import json
from pathlib import Path

import pytest
from tests.engines.rtx import trt  # noqa: F401  skips where TensorRT for RTX is not installed

from fovea_engines.build.build import build
from fovea_engines.build.plan import BuildPlan
from fovea_engines.repository.options import BuilderOptions, Profile

OLD = "1.0.0.7"
"""A release that is not installed."""


def rtx_version(repository: Path, model: Path, name: str, rows: int = 4, **options: object) -> Path:
    """Build the next version of a model for compute capability 80; its folder."""
    builder = BuilderOptions((Profile(1, min(2, rows), rows),), capabilities=("80",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(repository.parent / "home"))
        plan = BuildPlan(
            model, name, repository, "tensorrt-rtx", max_batch=rows, builder=builder, **options
        )
        build(plan)
    return max((repository / name).glob("[0-9]*"))


def tamper(folder: Path, **fields: object) -> Path:
    """Change what a card says."""
    card = folder / "card.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | fields))
    return folder
