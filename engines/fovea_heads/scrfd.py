"""Decodes SCRFD, a detector of faces: score, distances and landmarks of each level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.evidence import no_distances
from fovea_engines.detect.heads.grid import around, moving
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.skeleton import FACE
from fovea_engines.session import Array
from fovea_heads.scored_boxes import Level, ScoredBoxes


class Scrfd(ScoredBoxes):
    """Decodes, for each of two anchors a cell, a score and distances in strides.

    Distances are of the sides from the corner of the cell (SCRFD, arXiv 2105.04714). Outputs have
    no batch dimension where the exporter has fixed it at one image.
    """

    family = "scrfd"
    labels = ("face",)
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 0,
        "scale": 1.0,
        "mean": (127.5, 127.5, 127.5),
        "std": (128.0, 128.0, 128.0),
    }
    sized = True
    per_cell = 2

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for scores, boxes and perhaps landmarks of three levels, whatever their names."""
        scores, boxes, points = (signature.by_columns(columns) for columns in (1, 4, 10))
        levels = len(cls.strides)
        if not len(scores) == len(boxes) == levels or len(points) not in (0, levels):
            return OTHERS
        ranks = {len(tensor.shape) for tensor in signature.outputs}
        if len(signature.outputs) > 3 * levels or ranks not in ({2}, {3}):
            return OTHERS
        counts = [tensor.shape[-2] for tensor in scores]
        if counts != [tensor.shape[-2] for tensor in boxes]:
            return OTHERS
        if isinstance(evidence := signature.on_levels(counts, cls.strides, cls.per_cell), str):
            return evidence
        strength, why = evidence
        names = tuple(tensor.name for tensor in (*scores, *boxes, *points))
        usual = [f"{kind}_{s}" for kind in ("score", "bbox", "kps") for s in cls.strides]
        if list(names) == usual[: len(names)]:
            strength, why = Strength.NAMES, f"{why}; the names are SCRFD's"
        return Fit(names, 1, why, strength, FACE if points else None)

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude scores that are none, and distances in pixels."""
        reason = super().contradiction(outputs)
        distances = [level[1] for level in self.levels(outputs, 0)]
        return reason or no_distances(np.concatenate(distances)) or moving(self.moved(outputs))

    def numbers(self, outputs: Mapping[str, Array], row: int) -> Iterator[tuple[str, Array]]:
        """Yield all outputs, of which some exports have no batch."""
        for name in self.outputs:
            tensor = outputs[name]
            yield f"output {name}", tensor if tensor.ndim == 2 else tensor[row]

    def levels(self, outputs: Mapping[str, Array], row: int) -> Sequence[Level]:
        """Return score, distances and perhaps landmarks of each level."""
        one = [values for _, values in self.numbers(outputs, row)]
        return list(zip(*(one[at : at + 3] for at in range(0, len(one), 3)), strict=True))

    def boxes(self, values: NDArray[np.float32], found: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return corners of boxes around the corners of their cells."""
        places, strides = self.cells(found)
        return around(places * strides, values * strides)

    def landmarks(
        self, values: NDArray[np.float32], boxes: NDArray[np.float32], found: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return points by their distances from the corners of their cells."""
        places, strides = self.cells(found)
        return (places[:, None] + values.reshape(-1, 5, 2)) * strides[:, None]
