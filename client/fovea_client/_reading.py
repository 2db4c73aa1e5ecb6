"""Reads answers into results or errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from httpx import Response

from fovea_client._masks import read_mask
from fovea_client.answers import (
    Detection,
    ImageError,
    ImageResult,
    Prediction,
    ScoredClass,
    Tensor,
    Timing,
)
from fovea_client.errors import QueueFull, ServerError, UnexpectedAnswer
from fovea_client.images import Picture
from fovea_client.maps import Depth, Saliency, read_map, read_semantic
from fovea_client.models import Model, ModelSummary, ModelVersion, TensorMetadata
from fovea_client.shapes import Box, Corner, Keypoint, Rotated

BEFORE_TENSORS = "inference-header-content-length"
"""Header of the v2 protocol: the number of bytes of JSON, after which tensors follow."""
_Shape = TypeVar("_Shape", Box, Corner, Rotated)


def prediction(response: Response) -> Prediction:
    """Read the answer to a predict request; an error of the server is a `ServerError`."""
    with reading(response, "a prediction") as answer:
        timing = {name: float(answer["timing_ms"][name]) for name in Timing.__dataclass_fields__}
        return Prediction(
            model=str(answer["model"]),
            version=str(answer["version"]),
            task=str(answer["task"]),
            images=tuple(image_result(image) for image in answer["images"]),
            timing_ms=Timing(**timing),
        )


def models(response: Response) -> tuple[ModelSummary, ...]:
    """Read the list of models; raises as `prediction` does."""
    with reading(response, "a list of models") as answer:
        return tuple(ModelSummary(**_summary(ModelSummary, each)) for each in answer["models"])


def model(response: Response) -> Model:
    """Read the description of a model; raises as `prediction` does."""
    with reading(response, "a model") as answer:
        given = _summary(Model, answer)
        for name in ("inputs", "outputs"):
            given[name] = tuple(
                TensorMetadata(str(t["name"]), str(t["datatype"]), tuple(t["shape"]))
                for t in given[name]
            )
        labels = given["labels"]
        return Model(**given | {"labels": None if labels is None else tuple(labels)})


def image(response: Response) -> bytes:
    """Read the answer to a request for an annotated image: its encoded bytes."""
    raise_for_status(response)
    kind = response.headers.get("content-type", "nothing")
    if not kind.startswith("image/"):
        raise UnexpectedAnswer(f"asked for an image, but the answer is {kind}")
    return Picture(response.content)


def ready(response: Response) -> bool:
    """Read the answer to a readiness request: yes (2xx) or no (400, 503)."""
    if response.status_code in (400, 503):
        return False
    raise_for_status(response)
    return True


def raise_for_status(response: Response) -> None:
    """Raise the error of an answer other than 2xx: `QueueFull` for 429, or `ServerError`."""
    if 200 <= response.status_code < 300:
        return
    code, message = _error(response)
    kind = QueueFull if response.status_code == 429 else ServerError
    raise kind(response.status_code, code, message, _seconds(response.headers.get("retry-after")))


def _error(response: Response) -> tuple[str, str]:
    """Return the code and the message of an error."""
    code = f"http_{response.status_code}"
    with suppress(ValueError):
        match json.loads(response.content):
            case {"error": {"code": given, "message": message}}:
                return str(given), str(message)
            case {"error": str(message)}:  # the v2 protocol has no codes
                return code, message
    # A proxy answers in its own words; their first line is usually the most useful one.
    text = response.content[:200].decode("utf-8", "replace").strip()
    return code, text or "the answer has no content"


@contextmanager
def reading(response: Response, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON of an answer; errors while it is read become `UnexpectedAnswer`."""
    raise_for_status(response)
    try:
        yield json.loads(response.content[: json_size(response)])
    except (
        AttributeError,
        LookupError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise UnexpectedAnswer(
            f"the answer is not {kind} ({type(error).__name__}: {error}); "
            "is this the address of a Fovea server?"
        ) from error


def json_size(response: Response) -> int:
    """Return the number of bytes of JSON in an answer; tensors may follow them."""
    return int(response.headers.get(BEFORE_TENSORS, len(response.content)))


def _summary(kind: type[ModelSummary], value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a model, without those that later servers add."""
    given = {field.name: value[field.name] for field in fields(kind)}
    names = [field.name for field in fields(ModelVersion)]
    versions = (ModelVersion(**{name: v[name] for name in names}) for v in given["versions"])
    return given | {"versions": tuple(versions)}


def image_result(value: dict[str, Any]) -> ImageResult | ImageError:
    """Read the JSON of one image in an answer: its results, or its error."""
    if "error" in value:
        return ImageError(str(value["error"]["code"]), str(value["error"]["message"]))
    return ImageResult(
        width=int(value["width"]),
        height=int(value["height"]),
        orientation=int(value["orientation"]),
        detections=tuple(_detection(found) for found in value.get("detections", ())),
        tensors=tuple(_tensor(tensor) for tensor in value.get("tensors", ())),
        classes=tuple(
            ScoredClass(int(each["class_id"]), str(each["class_name"]), float(each["score"]))
            for each in value.get("classes", ())
        ),
        semantic=read_semantic(value.get("semantic")),
        saliency=read_map(Saliency, value.get("saliency")),
        depth=read_map(Depth, value.get("depth")),
    )


def _detection(value: dict[str, Any]) -> Detection:
    return Detection(
        box=_numbers(Box, value["box"]),
        score=float(value["score"]),
        class_id=int(value["class_id"]),
        class_name=str(value["class_name"]),
        mask=read_mask(value.get("mask")),
        keypoints=tuple(
            Keypoint(str(each["name"]), *(float(each[name]) for name in ("x", "y", "score")))
            for each in value.get("keypoints", ())
        ),
        rotated=_numbers(Rotated, value["rotated"]) if value.get("rotated") else None,
        corners=tuple(_numbers(Corner, each) for each in value.get("corners", ())),
    )


def _numbers(kind: type[_Shape], value: dict[str, Any]) -> _Shape:
    return kind(*[float(value[name]) for name in kind.__match_args__])


def _tensor(value: dict[str, Any]) -> Tensor:
    data = np.asarray(value["data"], np.dtype(str(value["datatype"]))).reshape(value["shape"])
    return Tensor(str(value["name"]), data)


def _seconds(retry_after: str | None) -> float | None:
    # The header may also hold a date, but only proxies send one; it is ignored.
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
