"""Writes the vectors of images as JSON and as tensors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from fovea_engines.detect.embedding import Embedding
from fovea_engines.detect.options import PredictOptions
from fovea_engines.session import Array
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.form import Form


def _vector(found: Embedding, options: PredictOptions) -> Array:
    return found.unit if options.normalise else found.vector


def embedding_json(found: Embedding, words: Vocabulary, options: PredictOptions) -> dict[str, Any]:
    """Return the vector, in base64 or as a list, and the norm that the network gave it."""
    vector = _vector(found, options)
    answer: dict[str, Any] = {"norm": round(found.norm, 6), "normalised": options.normalise}
    if options.vector == "list":
        answer["numbers"] = vector.tolist()
    else:
        answer["data"] = base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return {"embedding": answer}


def embedding_tensors(
    found: Sequence[Embedding], words: Vocabulary, options: PredictOptions
) -> list[OutputTensor]:
    """Convert vectors: ``embedding`` FP32 [n, d], and ``norms`` FP32 [n] of the network's own."""
    vectors = np.stack([_vector(one, options) for one in found])
    norms = np.array([one.norm for one in found], np.float32)
    return [OutputTensor("embedding", "FP32", vectors), OutputTensor("norms", "FP32", norms)]


EMBEDDING = Form(
    Embedding,
    ("embed",),
    embedding_json,
    embedding_tensors,
    lambda head: [("embedding", "FP32", (-1, -1)), ("norms", "FP32", (-1,))],
)
