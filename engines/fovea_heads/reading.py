"""Decodes recognisers of text, which are trained by CTC (Graves et al., 2006)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fovea_engines.detect.heads.base import Head, softmax
from fovea_engines.detect.heads.evidence import no_logits
from fovea_engines.detect.heads.signature import OTHERS, Fit, Signature, Strength
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.reading import ReadText
from fovea_engines.session import Array
from fovea_preprocess.plural import counted

# The sum of a softmax in float16 is so far off 1.
_ROUNDING = 0.02


class Ctc(Head):
    """Decodes probabilities [batch, steps, characters], the first of no character, as PP-OCR's.

    Of each step the best is taken; equal ones that follow each other are one character.
    """

    family = "ctc"
    task = "read"
    axis: ClassVar[int] = 2
    blank_last: ClassVar[bool] = False
    preprocess: ClassVar[Mapping[str, Any]] = {
        "anchor": "top-left",
        "pad": 127,
        "channels": "BGR",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
    }
    guessed = "PaddleOCR fits a line in at the left, in BGR, -1 to 1; others differ"

    @classmethod
    def fit(cls, signature: Signature) -> Fit | str:
        """Check for one output whose columns are as many as the dictionary says."""
        if len(signature.outputs) != 1 or len(signature.outputs[0].shape) != 3:
            return OTHERS
        [output] = signature.outputs
        if not output.dtype.startswith("float") or (columns := output.shape[cls.axis]) < 2:
            return OTHERS
        characters = columns - 1
        why = f"{counted(columns, 'column')} for characters and for none"
        fit = Fit((output.name,), characters, why, Strength.ASKED)
        if (named := signature.num_labels) is not None:
            # PaddleOCR adds a space to the characters of the file.
            if named not in (characters, characters - 1):
                return (
                    f"{counted(columns, 'column')}: one stands for no character, so --labels or "
                    f"the metadata must name {characters}, and they name {named}"
                )
            fit = replace(fit, num_classes=named)
        if signature.task is not None:
            return replace(fit, strength=Strength.METADATA, why=f"{why}; the task is read")
        if "character" in signature.metadata and named is not None:
            why += "; the metadata have a dictionary"
            return replace(fit, strength=Strength.METADATA, why=why)
        return fit

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude what is no softmax at each step."""
        numbers = outputs[self.outputs[0]][0].astype(np.float32)
        if numbers.min() < -_ROUNDING:
            return f"its numbers are no probabilities: they go from {numbers.min():.3g}"
        sums = numbers.sum(axis=self.axis - 1)
        if np.abs(sums - 1).max() > _ROUNDING:
            return f"the probabilities of a step add up to {sums.max():.3g} and not to 1"
        return None

    def decode(self, outputs: Mapping[str, Array], row: int, options: PredictOptions) -> ReadText:
        """Return the text of one image."""
        numbers = outputs[self.outputs[0]][row].astype(np.float32)
        steps = self.probabilities(numbers if self.axis == 2 else numbers.T)
        best = steps.argmax(axis=1)
        blank = steps.shape[1] - 1 if self.blank_last else 0
        kept = (best != blank) & np.concatenate([[True], best[1:] != best[:-1]])
        ids = best[kept] - (0 if self.blank_last else 1)
        return ReadText(ids.astype(np.int32), steps[kept, best[kept]])

    def probabilities(self, steps: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probabilities, float32 [steps, characters]."""
        return steps


class CtcLogits(Ctc):
    """Decodes logits, whose softmax are the probabilities."""

    family = "ctc-logits"

    def contradiction(self, outputs: Mapping[str, Array]) -> str | None:
        """Exclude probabilities."""
        return no_logits(outputs[self.outputs[0]])

    def probabilities(self, steps: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the softmax of each step."""
        return softmax(steps)


class LprNet(CtcLogits):
    """Decodes logits [batch, characters, steps], the last of no character, of plates.

    LPRNet stretches plates to 24 x 94, in BGR, less 127.5 and over 128.
    """

    family = "lprnet"
    axis = 1
    blank_last = True
    preprocess: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "channels": "BGR",
        "scale": 1.0,
        "mean": (127.5, 127.5, 127.5),
        "std": (128.0, 128.0, 128.0),
    }
    guessed = "LPRNet stretches plates, in BGR, -1 to 1; others differ"
