"""Names the classes of a model, and the stage results of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fovea_engines.results.attributes import Attributes
from fovea_engines.results.class_names import class_name
from fovea_engines.results.classes import Classes
from fovea_engines.results.embedding import Embedding
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.reading import ReadText
from fovea_engines.results.stage_results import StageResult


def class_names(labels: Sequence[str] | None, seen: Iterable[int]) -> list[str]:
    """Return the class names in the order of class ids.

    These are the labels. For ids in `seen` without a label, the number of the class is its name.
    """
    most = max((len(labels or ()) - 1, *seen))
    return [class_name(labels, each) for each in range(most + 1)]


OF_PIPELINE = ("attributes", "classes", "text", "text_score", "embedding", "error")
"""Fields that the stages of a pipeline may add to an object."""


def pipeline_columns(results: Iterable[StageResult]) -> dict[str, Any]:
    """Return the stage results of an object, by field, in the order of `OF_PIPELINE`.

    The field "attributes" maps the name of each attribute to its likely classes. The field
    "classes" maps the name of each class to its score.
    """
    found: dict[str, Any] = {}
    for each in results:
        json = {} if each.found is None else each.found.to_json(each.vocabulary, PredictOptions())
        match each.found:
            case Attributes(found=several):
                names = found.setdefault("attributes", {})
                for one in several:
                    names[one.name] = [class_name(each.vocabulary.labels, i) for i in one.likely]
            case Classes() if rows := json[Classes.field]:
                found["classes"] = {row["class_name"]: row["score"] for row in rows}
            case ReadText():
                text = json[ReadText.field]
                found |= {"text": text["text"], "text_score": text["score"]}
            case Embedding(vector=vector):
                found["embedding"] = vector.tolist()
        if each.error is not None:
            found["error"] = each.error[1]
    return {name: found[name] for name in OF_PIPELINE if name in found}
