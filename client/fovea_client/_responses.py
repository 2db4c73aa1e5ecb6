"""Reads HTTP responses into results or errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from httpx import Response

from fovea_client._json import read
from fovea_client.answers import Prediction
from fovea_client.errors import QueueFull, ServerError, UnexpectedAnswer
from fovea_client.images import Picture
from fovea_client.models import Model, ModelSummary
from fovea_client.results import Embedding, Match

BEFORE_TENSORS = "inference-header-content-length"
"""Header of the v2 protocol. Its value is the size of the JSON at the start of the body in bytes.

Binary tensors follow the JSON.
"""


def prediction(response: Response) -> Prediction:
    """Read the response to a predict request.

    Raises:
        ServerError: the status is not 2xx.
        UnexpectedAnswer: the body is not a prediction.

    Example:
        response = httpx.post("http://127.0.0.1:8000/v1/models/yolov8n/predict", content=image)
        found = prediction(response).detections
    """
    with parse_json(response, "a prediction") as answer:
        return read(Prediction, answer)


def models(response: Response) -> tuple[ModelSummary, ...]:
    """Read the list of models. The errors are described at `prediction`."""
    with parse_json(response, "a list of models") as answer:
        return tuple(read(ModelSummary, each) for each in answer["models"])


def model(response: Response) -> Model:
    """Read the description of a model. The errors are described at `prediction`."""
    with parse_json(response, "a model") as answer:
        return read(Model, answer)


def embeddings(response: Response) -> tuple[Embedding, ...]:
    """Read the embeddings of texts. The errors are described at `prediction`."""
    with parse_json(response, "vectors") as answer:
        return tuple(read(Embedding, each["embedding"]) for each in answer["texts"])


def matches(response: Response) -> tuple[Match, ...]:
    """Read the matches of a search with one image. The errors are described at `prediction`."""
    with parse_json(response, "matches") as answer:
        [only] = answer["images"]
        return tuple(read(Match, each) for each in only["matches"])


def image(response: Response) -> bytes:
    """Return the encoded bytes of an annotated image.

    Raises:
        ServerError: the status is not 2xx.
        UnexpectedAnswer: the body is not an image.
    """
    raise_for_status(response)
    kind = response.headers.get("content-type", "nothing")
    if not kind.startswith("image/"):
        raise UnexpectedAnswer(f"expected an image, but the response has the content type {kind}")
    return Picture(response.content)


def ready(response: Response) -> bool:
    """Read the response of a readiness check: True for a 2xx status, False for 400 and 503.

    Raises:
        ServerError: any other status.
    """
    if response.status_code in (400, 503):
        return False
    raise_for_status(response)
    return True


def raise_for_status(response: Response) -> None:
    """Raise an error if the status is not 2xx.

    Raises:
        QueueFull: the status is 429.
        ServerError: any other status.
    """
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
    # The body may be an HTML page of a proxy. Its first 200 bytes usually contain the error.
    text = response.content[:200].decode("utf-8", "replace").strip()
    return code, text or "the response is empty"


@contextmanager
def parse_json(response: Response, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON of a response. Errors in the `with` block are raised as `UnexpectedAnswer`."""
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
            f"the response is not {kind} ({type(error).__name__}: {error}): is this the URL of a "
            "Fovea server?"
        ) from error


def json_size(response: Response) -> int:
    """Return the number of bytes of JSON in a response; tensors may follow them."""
    return int(response.headers.get(BEFORE_TENSORS, len(response.content)))


def _seconds(retry_after: str | None) -> float | None:
    # Retry-After may also be a date. Only proxies send dates, so a date is ignored.
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
