"""Identifies the model that made the vectors of an index: they compare with its own alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Self

from fovea_engines.repository.card import EngineCard


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """All that decides a vector of an image, but for the precision and the backend.

    Those may change: a build compares its engine with the network that it was made of.

    Attributes:
        network: sha256 of the source model.
        preprocessing: digest of the source model's, wherever the engine does which part of it.
        outputs: places of the outputs that the head reads; a backend may give them other names.
    """

    network: str
    preprocessing: str
    outputs: str

    @classmethod
    def of(cls, card: EngineCard) -> Self:
        """Return the identity of the model of a card."""
        spec = card.source_preprocess or card.preprocess
        names = [output.name for output in card.outputs]
        # An engine without a source, as a plan that another program built, is itself the network.
        return cls(
            card.onnx_sha256 or next(iter(card.files.values())),
            "" if spec is None else spec.digest,
            " ".join(str(names.index(name)) for name in card.head_outputs),
        )

    @classmethod
    def read(cls, parts: Sequence[str]) -> Self:
        """Read what `parts` returned; ValueError if it is something else."""
        try:
            return cls(*parts)
        except TypeError as error:
            raise ValueError(f"its model has {len(parts)} parts") from error

    @property
    def parts(self) -> tuple[str, ...]:
        """Return it as texts, for a file."""
        return astuple(self)

    def difference(self, other: Self) -> str | None:
        """Say of which part another model has another; None if it makes the same vectors."""
        if self.network != other.network:
            return "by another network"
        if self.preprocessing != other.preprocessing:
            return "with other preprocessing"
        return None if self.outputs == other.outputs else "from another output"
