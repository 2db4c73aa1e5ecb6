"""Fills in the controls that say something of a whole image or of a region: choices and texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fovea_engines.results.detections import Detections
from fovea_engines.results.maps import ClassMap
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.task_result import TaskResult
from fovea_engines.results.vocabulary import Vocabulary
from fovea_server.integrations.label_studio.config import Control, spelling

Fields = dict[str, Any]
"""Fields of an image of /v1, or of an object there."""


def fields_of(found: TaskResult, words: Vocabulary) -> tuple[Fields, dict[int, Fields]]:
    """Return the fields of the image, and of each object by its index."""
    if isinstance(found, ClassMap) or (isinstance(found, Detections) and found.findings is None):
        return {}, {}
    if not isinstance(found, Detections):
        return found.to_json(words, PredictOptions()), {}
    # Masks become regions of their own.
    objects = replace(found, masks=None).to_json(words, PredictOptions())["detections"]
    return {}, dict(enumerate(objects))


def control_value(control: Control, fields: Fields) -> tuple[dict[str, Any], float] | None:
    """Return the value and the score that a control gets; None where nothing suits it."""
    if control.kind == "TextArea":
        text = fields.get("reading", fields.get("text"))
        if not text or not text["text"] or text["score"] < control.threshold:
            return None
        return {"text": [text["text"]]}, text["score"]
    scores: dict[str, float] = {}
    for one in _classes(control, fields):
        label = control.labels.get(spelling(one["class_name"]))
        if label is not None and one["score"] >= control.threshold:
            scores.setdefault(label, one["score"])
    if not scores:
        return None
    chosen = list(scores) if control.several else list(scores)[:1]
    return {"choices": chosen}, scores[chosen[0]]


def _classes(control: Control, fields: Fields) -> list[dict[str, Any]]:
    """Return the classes of the attribute that has the control's name, else all; best first."""
    named = fields.get("attributes", [])
    own = [each for each in named if spelling(each["name"]) == spelling(control.name)]
    found = [one for each in own or named for one in each["classes"]]
    if not own:
        found += fields.get("classes", [])
    return sorted(found, key=lambda one: -one["score"])
