"""The models that an ensemble runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fovea_engines.repository.config_scheduling import EnsembleStep
from fovea_preprocess.errors import ModelNotReady, NotFound


class EnsembleMember(Protocol):
    """A model that an ensemble runs."""

    def labels_of(self, output: str) -> tuple[str, ...] | None:
        """Look up the class names of an output, by index; None where it has none."""


class EnsembleMembers:
    """The models of an ensemble's steps, as they were when it was loaded.

    Args:
        steps: of the ensemble.
        find: looks up a model that can answer now, by name and version; None for the newest.

    Raises:
        NotFound, ModelNotReady: one of them cannot answer.
    """

    def __init__(
        self,
        steps: Sequence[EnsembleStep],
        find: Callable[[str, int | None], EnsembleMember],
    ) -> None:
        self._steps = steps
        self._find = find
        self._models = self._look()

    @property
    def outdated(self) -> bool:
        """True if one of them has been loaded again, or is gone."""
        try:
            return self._look() != self._models
        except (NotFound, ModelNotReady):
            return True

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Collect the ensemble's tensors with labels: name -> class names by index."""
        labels = {}
        for step, model in zip(self._steps, self._models, strict=True):
            for output, tensor in step.output_map.items():
                if (known := model.labels_of(output)) is not None:
                    labels[tensor] = known
        return labels

    def _look(self) -> list[EnsembleMember]:
        return [self._find(step.model_name, step.version) for step in self._steps]
