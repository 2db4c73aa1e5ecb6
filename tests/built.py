"""Engines for tests of what uses engines: each is built once, and kept for later runs.

Tests of builds, precision and heads call the product's own `build`.
"""

import fcntl
import shutil
import time
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from hashlib import sha256
from pathlib import Path

from fovea_engines.build import build as product
from fovea_engines.build.plan import BuildPlan
from fovea_engines.repository.card import CARD_FILE, EngineCard

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".pytest_cache" / "engines"
_DAY_S = 86_400
# Each of these may change what a build writes.
_SOURCES = ("engines", "preprocess", "locks", "constraints.txt", "pyproject.toml")


def build(plan: BuildPlan) -> EngineCard:
    """Do as the product's `build`; copy an engine that was built of the same files and sources."""
    model = plan.repository / plan.name
    if model.exists() or plan.tensorrt is not None:
        return product.build(plan)
    kept = KEPT / _sources() / _key(plan)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        # Files of tests that need the same engine begin together: one waits for the other.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists():
            shutil.copytree(kept, model)
            return EngineCard.read(model / "1" / CARD_FILE)
        card = product.build(plan)
        new = kept.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(model, new)
        new.rename(kept)
    return card


def forget_older() -> None:
    """Delete engines that other sources built, a day after the last: another run may use them."""
    for folder in KEPT.glob("*"):
        if folder.name != _sources() and time.time() - folder.stat().st_mtime > _DAY_S:
            shutil.rmtree(folder, ignore_errors=True)


def _key(plan: BuildPlan) -> str:
    """Return the sha256 of all fields of a plan, and of the contents of files that they name."""
    digest = sha256()
    given = {field.name: getattr(plan, field.name) for field in fields(plan)}
    del given["repository"]
    given["tokenizer"] = plan.tokenizer_file
    for name, value in given.items():
        shown = list(_contents(value)) if isinstance(value, Path) else value
        digest.update(f"{name}={shown!r}\n".encode())
    return digest.hexdigest()


@cache
def _sources() -> str:
    digest = sha256()
    for name in _SOURCES:
        digest.update(repr(list(_contents(ROOT / name))).encode())
    return digest.hexdigest()


def _contents(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the sha256 of a file, or of each file of a folder."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts:
            yield str(file.relative_to(path)), sha256(file.read_bytes()).hexdigest()
