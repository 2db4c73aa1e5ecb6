"""Writes the text of images as JSON and as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.reading import ReadText
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.form import Form
from fovea_server.tensors.results.objects import SCORE, rounded


def reading_json(found: ReadText, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the text, its mean score, and each character with its own."""
    characters = found.characters(words.labels)
    scores = rounded(found.scores[:, None], SCORE)
    return {
        "reading": {
            "text": "".join(characters),
            "score": round(found.score, 5),
            "characters": [
                {"character": character, "score": score}
                for character, (score,) in zip(characters, scores, strict=True)
            ],
        }
    }


def reading_tensors(
    found: Sequence[ReadText], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert texts.

    Returns:
        ``text`` BYTES [n]; ``scores`` FP32 [n], the mean of each; ``character_scores`` FP32
        [n, k], with zeros behind shorter texts.
    """
    texts = np.array(["".join(one.characters(words.labels)).encode() for one in found], object)
    scores = np.array([one.score for one in found], np.float32)
    each = np.zeros((len(found), max(len(one.scores) for one in found)), np.float32)
    for row, one in zip(each, found, strict=True):
        row[: len(one.scores)] = one.scores
    return [
        OutputTensor("text", "BYTES", texts),
        OutputTensor("scores", "FP32", scores),
        OutputTensor("character_scores", "FP32", each),
    ]


READING = Form(
    ReadText,
    ("read",),
    reading_json,
    reading_tensors,
    lambda head: [
        ("text", "BYTES", (-1,)),
        ("scores", "FP32", (-1,)),
        ("character_scores", "FP32", (-1, -1)),
    ],
)
