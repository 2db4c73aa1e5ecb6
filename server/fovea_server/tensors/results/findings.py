"""Writes what the later stages of a pipeline say of objects, as JSON and as a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from fovea_engines.detect.attributes import Attributes
from fovea_engines.detect.classes import Classes
from fovea_engines.detect.detections import Finding
from fovea_engines.detect.embedding import Embedding
from fovea_engines.detect.options import PredictOptions
from fovea_engines.detect.reading import ReadText
from fovea_server.tensors.image_messages import Vocabulary
from fovea_server.tensors.messages import OutputTensor
from fovea_server.tensors.results.attributes import attributes_json
from fovea_server.tensors.results.classes import classes_json
from fovea_server.tensors.results.embedding import embedding_json
from fovea_server.tensors.results.form import Listed
from fovea_server.tensors.results.reading import reading_json

FINDINGS: Final[Listed] = ("findings", "BYTES", (-1, -1))
"""The tensor of `findings_tensor`."""


def add_findings(
    objects: Sequence[dict[str, Any]],
    findings: Sequence[Sequence[Finding]],
    options: PredictOptions,
) -> None:
    """Add the findings of each object to its JSON."""
    for each, found in zip(objects, findings, strict=True):
        for one in found:
            _add(each, one, options)


def _add(answer: dict[str, Any], finding: Finding, options: PredictOptions) -> None:
    words = Vocabulary(finding.labels, None, "")
    match finding.found:
        case Attributes() as found:
            answer.setdefault("attributes", []).extend(
                attributes_json(found, words, options)["attributes"]
            )
        case Classes() as found if finding.field == "attributes":
            classes = classes_json(found, words, options)["classes"]
            attribute = {"name": finding.stage, "exclusive": True, "classes": classes}
            answer.setdefault("attributes", []).append(attribute)
        case Classes() as found:
            answer |= classes_json(found, words, options)
        case Embedding() as found:
            answer |= embedding_json(found, words, options)
        case ReadText() as found:
            answer["text"] = reading_json(found, words, options)["reading"]
    if finding.error is not None:
        code, message = finding.error
        answer.setdefault("error", {"code": code, "message": message})


def findings_tensor(
    found: Sequence[Sequence[Sequence[Finding]]], options: PredictOptions
) -> OutputTensor:
    """Convert to ``findings`` BYTES [n, k]: of each object the JSON that /v1 adds to it."""
    texts = np.full((len(found), max(map(len, found))), b"", object)
    for row, objects in zip(texts, found, strict=True):
        for column, findings in enumerate(objects):
            answer: dict[str, Any] = {}
            add_findings([answer], [findings], options)
            row[column] = orjson.dumps(answer)
    return OutputTensor("findings", "BYTES", texts)
