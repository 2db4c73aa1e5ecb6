"""Writes the classes of images as JSON and as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.options import PredictOptions
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.form import Form
from fovea_server.tensors.results.objects import (
    SCORE,
    SCORED_CLASSES,
    rounded,
    scored_classes,
)


def classes_json(found: Classes, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the classes, best first."""
    scores = rounded(found.scores[:, None], SCORE)
    return {
        "classes": [
            {"class_id": each, "class_name": class_name(words.labels, each), "score": score}
            for each, (score,) in zip(found.class_ids.tolist(), scores, strict=True)
        ]
    }


def classes_tensors(
    found: Sequence[Classes], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert classes.

    Returns:
        ``scores`` FP32 [n, k], ``class_ids`` INT32 [n, k] and ``class_names`` BYTES [n, k], best
        first. k is `top_k`, or the number of classes that there are.
    """
    return scored_classes(found, max(map(len, found)), words)


CLASSES = Form(
    Classes, ("classify",), classes_json, classes_tensors, lambda head: list(SCORED_CLASSES)
)
