"""Encodes the results for an image in the form of Roboflow's inference server."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

import cv2
import numpy as np
import orjson

from fovea_engines.results.class_names import class_name
from fovea_engines.results.classes import Classes
from fovea_engines.results.options import PredictOptions
from fovea_engines.results.vocabulary import Vocabulary
from fovea_server.tensors.messages import ImageResult
from fovea_server.traffic.call import CALL

TASKS = {
    "detect": "object-detection",
    "obb": "object-detection",
    "segment": "instance-segmentation",
    "pose": "keypoint-detection",
    "classify": "classification",
}
"""Maps the supported tasks to Roboflow's names of these tasks."""


def predictions_json(
    result: ImageResult,
    vocabulary: Vocabulary,
    options: PredictOptions,
    *,
    least: float,
    least_keypoint: float,
) -> bytes:
    """Encode the predictions for one image. Classes and keypoints with low scores are left out."""
    assert result.found is not None, "the task of the model is one of TASKS"
    found = result.found.to_json(vocabulary, options)
    if "detections" in found:
        return orjson.dumps([_object(each, least_keypoint) for each in found["detections"]])
    likely = (each for each in found["classes"] if each["score"] >= least)
    return orjson.dumps([{**_class(each), "confidence": each["score"]} for each in likely])


def response(
    result: ImageResult, vocabulary: Vocabulary, seconds: float, drawn: bytes | None
) -> dict[str, object]:
    """Return the response for one image. Its predictions are already encoded."""
    call = CALL.get()
    answer: dict[str, object] = {
        "inference_id": "" if call is None else call.id,
        "time": round(seconds, 6),
        "image": {"width": result.width, "height": result.height},
        "predictions": orjson.Fragment(result.encoded),
    }
    if isinstance(result.found, Classes) and len(result.found):
        best = int(result.found.class_ids[0])
        answer["top"] = class_name(vocabulary.labels, best)
        answer["confidence"] = round(float(result.found.scores[0]), 5)
    if drawn is not None:
        answer["visualization"] = base64.b64encode(drawn).decode("ascii")
    return answer


def _class(each: dict[str, Any]) -> dict[str, Any]:
    return {"class": each["class_name"], "class_id": each["class_id"]}


def _object(each: dict[str, Any], least_keypoint: float) -> dict[str, Any]:
    box = each["box"]
    prediction = {
        "x": round((box["x1"] + box["x2"]) / 2, 3),
        "y": round((box["y1"] + box["y2"]) / 2, 3),
        "width": round(box["x2"] - box["x1"], 2),
        "height": round(box["y2"] - box["y1"], 2),
        "confidence": each["score"],
        **_class(each),
        "detection_id": str(uuid4()),
    }
    match each.get("mask"):
        case {"polygons": outlines}:
            prediction["points"] = _largest(outlines)
        case dict(run_lengths):
            prediction["rle"] = run_lengths
    if "keypoints" in each:
        prediction["keypoints"] = [
            {
                "x": point["x"],
                "y": point["y"],
                "confidence": point["score"],
                "class": point["name"],
                "class_id": index,
            }
            for index, point in enumerate(each["keypoints"])
            if point["score"] >= least_keypoint
        ]
    return prediction


def _largest(outlines: list[list[float]]) -> list[dict[str, float]]:
    """Return the outline with the largest area, because a prediction can contain only one."""
    shapes = [np.array(each, np.float32).reshape(-1, 2) for each in outlines]
    points = max(shapes, key=cv2.contourArea).tolist() if shapes else []
    return [{"x": x, "y": y} for x, y in points]
