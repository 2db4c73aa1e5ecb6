"""The half of a model that reads texts, as an engine asks a package for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.classes import Classes
from fovea_engines.detect.embedding import Embedding
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array

TEXT_FILE: Final = "text.onnx"
TOKENIZER_FILE: Final = "tokenizer.json"
WORDS: Final = "fovea.words"
"""Key of the metadata of a model that reads texts."""


class TextEncoder(Protocol):
    """The vectors of texts; safe from any number of threads."""

    @property
    def finds(self) -> bool:
        """True if it finds what texts say, and does not compare an image as a whole."""

    @property
    def computed(self) -> int:
        """Number of texts that the network has read."""

    @property
    def found(self) -> int:
        """Number of texts whose vector was there already."""

    def read(self, texts: Sequence[str]) -> list[Embedding]:
        """Return the vector of each text.

        Raises:
            InvalidOption: there is no text, or too many, or one is empty or too long.
            QueueFull: too many others wait for the network.
            NotFinite: it computes no numbers.
            ModelNotReady: it is closed.
        """

    def matrix(self, texts: tuple[str, ...]) -> NDArray[np.float32]:
        """Return the vectors of length 1 of a list, [n, d]; raises as `read`."""

    def classes(self, found: Embedding, options: PredictOptions) -> Classes:
        """Rank the texts of a request by how much an image is like them."""

    def infer(
        self, feeds: dict[str, Array], texts: tuple[str, ...], *, alone: bool
    ) -> dict[str, Array]:
        """Run the detector that finds what texts say."""

    def close(self) -> None:
        """Release the network's memory, once it has read. Calling it again does nothing."""
