"""Writes what several classifiers say of images as JSON and as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fovea_engines.detect.attributes import Attribute, Attributes
from fovea_engines.detect.class_names import class_name
from fovea_engines.detect.options import PredictOptions
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.form import Form
from fovea_server.tensors.results.objects import SCORE, rounded


def attributes_json(
    found: Attributes, words: Vocabulary, options: PredictOptions
) -> dict[str, Any]:
    """Return the best classes of each classifier."""
    return {"attributes": [_attribute(each, words) for each in found.found]}


def _attribute(found: Attribute, words: Vocabulary) -> dict[str, Any]:
    scores = rounded(found.scores[:, None], SCORE)
    classes = [
        {"class_id": each, "class_name": class_name(words.labels, each), "score": score}
        for each, (score,) in zip(found.class_ids.tolist(), scores, strict=True)
    ]
    return {"name": found.name, "exclusive": found.exclusive, "classes": classes}


def attributes_tensors(
    found: Sequence[Attributes], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert classes.

    Returns:
        ``attributes`` BYTES [n, classifiers]: "name=class", where several classes can be with
        commas between those from .5 on. ``scores`` FP32 [n, classes] of all, in the order of ids.
    """
    texts = np.full((len(found), len(found[0].found)), b"", object)
    for row, image in zip(texts, found, strict=True):
        for column, each in enumerate(image.found):
            named = ",".join(class_name(words.labels, class_id) for class_id in each.likely)
            row[column] = f"{each.name}={named}".encode()
    scores = np.stack([np.concatenate([a.probabilities for a in one.found]) for one in found])
    return [OutputTensor("attributes", "BYTES", texts), OutputTensor("scores", "FP32", scores)]


ATTRIBUTES = Form(
    Attributes,
    ("attributes",),
    attributes_json,
    attributes_tensors,
    lambda head: [("attributes", "BYTES", (-1, -1)), ("scores", "FP32", (-1, -1))],
)
