"""Reads answers, given as plain values, into typed results or errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fovea_client.errors import QueueFull, ServerError, UnexpectedAnswer
from fovea_client.results import (
    Box,
    Detection,
    ImageError,
    ImageResult,
    Prediction,
    Tensor,
    Timing,
)


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP answer, whole.

    Attributes:
        status: HTTP status.
        headers: names in lower case.
        body: content, decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


def prediction(response: Response) -> Prediction:
    """Read the answer to a predict request.

    Raises:
        ServerError: the server refused or failed.
        UnexpectedAnswer: the answer is not the JSON of a prediction.
    """
    raise_for_status(response)
    try:
        answer = json.loads(response.body)
        timing = {name: float(answer["timing_ms"][name]) for name in Timing.__dataclass_fields__}
        return Prediction(
            model=str(answer["model"]),
            version=str(answer["version"]),
            task=str(answer["task"]),
            images=tuple(_image(image) for image in answer["images"]),
            timing_ms=Timing(**timing),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswer(
            f"the answer is not a prediction ({type(error).__name__}: {error}); "
            "is this the address of a Fovea server?"
        ) from error


def picture(response: Response) -> bytes:
    """Read the answer to a request for an annotated picture: its encoded bytes.

    Raises:
        ServerError: the server refused or failed.
        UnexpectedAnswer: the answer is no picture.
    """
    raise_for_status(response)
    kind = response.headers.get("content-type", "nothing")
    if not kind.startswith("image/"):
        raise UnexpectedAnswer(f"asked for a picture, but the answer is {kind}")
    return response.body


def ready(response: Response) -> bool:
    """Read the answer to a readiness request.

    Raises:
        ServerError: the answer is neither yes (2xx) nor no (400, 503).
    """
    if response.status in (400, 503):
        return False
    raise_for_status(response)
    return True


def raise_for_status(response: Response) -> None:
    """Raise what an answer other than 2xx means.

    Raises:
        QueueFull: status 429.
        ServerError: any other status outside 200 to 299.
    """
    if 200 <= response.status < 300:
        return
    try:
        error = json.loads(response.body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (KeyError, TypeError, ValueError):
        # A proxy in between answers in its own words; its first line is usually the telling one.
        text = response.body[:200].decode("utf-8", "replace").strip()
        code, message = f"http_{response.status}", text or "the answer has no content"
    kind = QueueFull if response.status == 429 else ServerError
    raise kind(response.status, code, message, _seconds(response.headers.get("retry-after")))


def _image(value: dict[str, Any]) -> ImageResult | ImageError:
    if "error" in value:
        return ImageError(str(value["error"]["code"]), str(value["error"]["message"]))
    return ImageResult(
        width=int(value["width"]),
        height=int(value["height"]),
        orientation=int(value["orientation"]),
        detections=tuple(_detection(found) for found in value.get("detections", ())),
        tensors=tuple(_tensor(tensor) for tensor in value.get("tensors", ())),
    )


def _detection(value: dict[str, Any]) -> Detection:
    corners = value["box"]
    return Detection(
        box=Box(*(float(corners[name]) for name in ("x1", "y1", "x2", "y2"))),
        score=float(value["score"]),
        class_id=int(value["class_id"]),
        class_name=str(value["class_name"]),
    )


def _tensor(value: dict[str, Any]) -> Tensor:
    data = np.asarray(value["data"], np.dtype(str(value["datatype"]))).reshape(value["shape"])
    return Tensor(str(value["name"]), data)


def _seconds(retry_after: str | None) -> float | None:
    # The header may also hold a date, which only proxies send: treated as no invitation.
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
