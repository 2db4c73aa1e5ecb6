"""The engines that may be served: versions that were checked, and those that are built for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fovea_engines.backends.registry import BACKENDS, mismatch
from fovea_engines.build.build import build
from fovea_engines.build.calibration.ranges import RANGES_FILE
from fovea_engines.build.plan import BuildPlan
from fovea_engines.progress import Progress
from fovea_engines.repository.card import CARD_FILE, EngineCard, Precision
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, read_config
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import BackendError, BuildError, InvalidModel, InvalidOption, NotFound
from fovea_server.tune.setting import Candidate


@dataclass(frozen=True, slots=True)
class Found:
    """Candidates, of which the first is the one that is served now; and why others are none."""

    candidates: list[Candidate]
    left_out: list[str]


def find_candidates(repository: ModelRepository, name: str) -> Found:
    """Find the versions that may take the place of the one that is served.

    They were built from the same file for the same labels and preprocessing, agreed with it
    according to their card, and run on this machine. Of two that are alike, the newer counts.

    Raises:
        InvalidOption: the version that is served has no card, as `fovea build` writes it.
        NotFound: there is no such model.
    """
    repository.latest(name)
    config = read_config(repository.root / name / CONFIG_FILE)
    served = config.served(repository.versions(name))[-1]
    try:
        card = EngineCard.read(repository.folder(name, served) / CARD_FILE)
    except NotFound:
        raise InvalidOption(
            f"version {served} of {name} has no card.json, so nothing tells which versions may "
            "take its place: build it with `fovea build`"
        ) from None
    found = {_kind(card): Candidate(served, repository.folder(name, served), card)}
    left_out = []
    for version in reversed(repository.versions(name)):
        folder = repository.folder(name, version)
        try:
            other = EngineCard.read(folder / CARD_FILE)
        except (NotFound, InvalidModel) as error:
            left_out.append(f"version {version}: {error}")
            continue
        if version == served:
            continue
        if reason := _objection(other, card):
            left_out.append(f"version {version}: {reason}")
        else:
            found.setdefault(_kind(other), Candidate(version, folder, other))
    return Found(list(found.values()), left_out)


def build_candidates(
    found: Found,
    plan: BuildPlan,
    kinds: Iterable[tuple[str, Precision]],
    batches: Sequence[int],
    next_version: int,
    progress: Progress,
) -> Found:
    """Build the engines that are missing, each in a repository of its own.

    Args:
        found: what is there; its first candidate says how to build.
        plan: source, name, calibration for INT8, and the folder for those repositories.
        kinds: backends with precisions.
        batches: largest batches to build for.
        next_version: number of the first one that is built.
        progress: shows the builds.

    Returns:
        All of them; a build that was refused is among those left out.
    """
    base = found.candidates[0].card
    have = {_kind(candidate.card) for candidate in found.candidates}
    candidates, left_out = list(found.candidates), list(found.left_out)
    for (backend, precision), rows in product(kinds, batches):
        if (backend, precision, rows) in have:
            continue
        what = f"{backend} {precision}, batches up to {rows}"
        progress.note(f"building {what}")
        try:
            own = replace(
                plan,
                repository=plan.repository / f"{backend}-{precision}-{rows}",
                backend=backend,
                max_batch=rows,
                labels=base.labels,
                family=base.family,
                **(_like(candidates, plan) if precision == "int8" else {"calibration": None}),
                precision=precision,
            )
            card = build(own, progress)
        except (BuildError, BackendError) as error:
            left_out.append(f"{what}: {error}")
            continue
        if reason := _objection(card, base):
            left_out.append(f"{what}: {reason}")
            continue
        folder = ModelRepository(own.repository).folder(base.name)
        candidates.append(Candidate(next_version, folder, card))
        next_version += 1
    return replace(found, candidates=candidates, left_out=left_out)


def _like(candidates: Sequence[Candidate], plan: BuildPlan) -> dict[str, Any]:
    """Return the options of an INT8 build: ranges and layers of one that is there save minutes."""
    for candidate in candidates:
        ranges, found = candidate.folder / RANGES_FILE, candidate.card.calibration
        if candidate.card.precision == "int8" and found is not None and ranges.is_file():
            images, kept = plan.calibration, found.kept_float
            return {"calibration": ranges, "images": images, "keep_float": kept}
    return {"calibration": plan.calibration}


def backends_here() -> list[str]:
    """Name the backends that run on this machine's processor."""
    return [b.name for b in BACKENDS.values() if not b.on_gpu and b.info.problem is None]


def _kind(card: EngineCard) -> tuple[str, str, int]:
    return card.backend, card.precision, card.max_batch


def _objection(card: EngineCard, served: EngineCard) -> str | None:
    if card.agreement is None or card.refused is not None:
        return "its card does not say that it agrees with the model it was built from"
    if card.onnx_sha256 != served.onnx_sha256:
        return "it was built from another file than the version that is served"
    same = ("labels", "family", "preprocess")
    if other := [name for name in same if getattr(card, name) != getattr(served, name)]:
        return f"it was built with other {' and '.join(other)} than the version that is served"
    with suppress(BackendError):
        return mismatch(card)
    return "its backend is not installed"
