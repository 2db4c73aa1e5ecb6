"""The versions of a model that may replace the served version."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from fovea_engines.backends.registry import get_backend, mismatch
from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_engines.repository.card import CARD_FILE, EngineCard
from fovea_engines.repository.repository import ModelRepository
from fovea_preprocess.errors import BackendError, InvalidModel, InvalidOption, NotFound
from fovea_preprocess.spec import PreprocessSpec


@dataclass(frozen=True, slots=True)
class BuiltVersion:
    """A version of a model, with the card of its engine."""

    version: int
    card: EngineCard

    @property
    def title(self) -> str:
        """Backend, precision, and "rect" for a build with --rect, for example "openvino int8"."""
        return " ".join(filter(None, _kind(self.card)[:3]))

    @property
    def agreement(self) -> float | None:
        """Agreement with the source model, from 0 to 1; None if it was not measured."""
        return None if self.card.agreement is None else self.card.agreement.quality

    @property
    def accuracy(self) -> AnyAccuracy | None:
        """Accuracy on the labelled images of the build; None if the build had no labels."""
        return self.card.accuracy.get(self.card.precision)

    @property
    def on_gpu(self) -> bool:
        """True if the engine runs on a GPU, where batch sizes matter and CPU cores do not."""
        return get_backend(self.card.backend).on_gpu

    @property
    def max_batch(self) -> int:
        """Largest batch size of a call of the engine."""
        return max(1, self.card.max_batch)


def find_candidates(repository: ModelRepository, name: str) -> tuple[list[BuiltVersion], list[str]]:
    """Find the versions that may replace the served version.

    A candidate was built from the same file as the served version, with the same labels and
    preprocessing (except `--rect`). It agrees with its source model according to its card, and runs
    on this machine. If several versions have the same backend, precision, `--rect` and batch size,
    only the served version or the newest version is a candidate.

    Returns:
        The candidates, with the served version first; and the reasons why other versions are not
        candidates.

    Raises:
        InvalidOption: the served version has no card of `fovea build`.
        NotFound: the model does not exist.
    """
    repository.latest(name)
    versions = repository.versions(name)
    served = repository.served(name)[-1]
    try:
        card = EngineCard.read(repository.folder(name, served) / CARD_FILE)
    except NotFound:
        raise InvalidOption(
            f"version {served} of {name} has no card.json, so tune cannot choose versions to "
            "compare: build it with `fovea build`"
        ) from None
    found = {_kind(card): BuiltVersion(served, card)}
    left_out = []
    for version in reversed([each for each in versions if each != served]):
        try:
            other = EngineCard.read(repository.folder(name, version) / CARD_FILE)
        except (NotFound, InvalidModel) as error:
            left_out.append(f"version {version}: {error}")
            continue
        if reason := _objection(other, card):
            left_out.append(f"version {version}: {reason}")
        else:
            found.setdefault(_kind(other), BuiltVersion(version, other))
    return list(found.values()), left_out


def _kind(card: EngineCard) -> tuple[str, str, str, int]:
    rect = "rect" if card.preprocess is not None and card.preprocess.step else ""
    return card.backend, card.precision, rect, card.max_batch


def _objection(card: EngineCard, served: EngineCard) -> str | None:
    if card.agreement is None or card.refused is not None:
        return "its card.json has no agreement with the source model: build it again"
    if card.onnx_sha256 != served.onnx_sha256:
        return "it was built from a different file than the served version"
    same = {
        "labels": card.labels == served.labels,
        "family": card.family == served.family,
        "preprocess": _largest_input(card) == _largest_input(served),
    }
    if other := [name for name, equal in same.items() if not equal]:
        return f"it was built with different {' and '.join(other)} than the served version"
    with suppress(BackendError):
        return mismatch(card)
    return "its backend is not installed"


def _largest_input(card: EngineCard) -> PreprocessSpec | None:
    return card.preprocess and card.preprocess.largest
