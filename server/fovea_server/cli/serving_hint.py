"""Explains which versions of a model are served, and how to serve another version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, read_config
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import InvalidModel, NotFound

_RUNNING = "A running server loads it at its next restart, or soon with --model-control-mode poll."


def serving_notes(
    repository: ModelRepository, card: EngineCard, version: int, before: Sequence[int], command: str
) -> Iterator[str]:
    """Yield notes on how a build changed the served versions, and how to serve its version.

    Args:
        repository: repository of the model.
        card: card of the version.
        version: number of the version that was built, or that existed already.
        before: numbers of the versions that were served before the build.
        command: command that serves the repository.
    """
    name = card.name
    config = repository.root / name / CONFIG_FILE
    served = repository.served_or_none(name)
    if version in served:
        if before and before[-1] not in served:
            replaced = _engine(repository, name, before[-1])
            former = f"{replaced[0].lower()}{replaced[1:]}"
            yield f"Version {version} replaces {former}. To go back: fovea rollback {name}"
            if accuracy := _compare_accuracy(repository, card, before[-1]):
                yield f"Version {version} has {accuracy}."
        elif (current := repository.history(name).current) not in (None, version):
            yield (
                f"Version {current} stays current, because it was promoted. Requests that name no "
                "version use it."
            )
            yield f"To change that: fovea promote {name} {version}"
        yield _RUNNING
        there = "" if card.judge is None else " on a machine with this GPU: not ready here"
        yield f"Serve it: {command}{there}"
        return
    if not served:
        yield f"No version of {name} is served, as {config} is wrong: correct it."
        return
    other = _engine(repository, name, served[-1])
    if read_config(config).version_policy is None:
        yield f"Version {version} is not served. {other} is newer."
        yield f"To serve version {version}: fovea promote {name} {version}"
    else:
        policy = f"version_policy {{ specific {{ versions: [ {version} ] }} }}"
        yield f"Version {version} is not served. {other} is, by the version_policy in {config}."
        yield (
            f"To serve version {version}, write there: {policy}. Without a version_policy, the "
            "newest version is served."
        )


def _compare_accuracy(repository: ModelRepository, card: EngineCard, version: int) -> str:
    """Return a text with the accuracy of an engine, and of the version that it replaces.

    Return "" if the accuracies cannot be compared. Speeds are never compared, because the two
    builds measured them at different times.
    """
    try:
        other = EngineCard.read(repository.folder(card.name, version) / CARD_FILE)
    except (NotFound, InvalidModel):
        return ""
    # The FP32 engine is the source of a build in another precision, and this build has measured its
    # accuracy too.
    same = card.onnx_sha256 == other.onnx_sha256 and other.precision == "fp32"
    before = card.accuracy.get("fp32") if same else other.accuracy.get(other.precision)
    accuracy = card.accuracy.get(card.precision)
    if accuracy and before and (accuracy.metric, accuracy.images) == (before.metric, before.images):
        return f"{accuracy.metric} {accuracy.figure:.3f} (it had {before.figure:.3f})"
    return ""


def _engine(repository: ModelRepository, name: str, version: int) -> str:
    with suppress(NotFound, InvalidModel):
        card = EngineCard.read(repository.folder(name, version) / CARD_FILE)
        return f"Version {version} ({card.backend} {card.precision})"
    return f"Version {version}"
