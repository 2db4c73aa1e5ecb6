"""Answers of the v2 protocol: JSON, and errors in Triton's form."""

from __future__ import annotations

import orjson

from fovea_preprocess.errors import BodyTooLarge, FoveaError, RateLimited, Unauthenticated
from fovea_server.error_status import v2_http_status
from fovea_server.http.messages import JSON, TEXT, Response, error_headers


def json_answer(value: object) -> Response:
    """Make an answer with a value as JSON."""
    return Response(body=[orjson.dumps(value)])


def error_answer(error: FoveaError, media_type: bytes = JSON) -> Response:
    """Make an answer with an error in Triton's form."""
    answer = refusal(v2_http_status(error), str(error), media_type)
    answer.error = error
    # Triton's clients take 503 as they know it, without a time.
    if isinstance(error, RateLimited | Unauthenticated):
        answer.headers += error_headers(error)
    return answer


def refusal(status: int, message: str, media_type: bytes = TEXT) -> Response:
    """Make an answer with an error message and a status."""
    # It may quote a client's bytes that are no valid text.
    message = message.encode(errors="backslashreplace").decode()
    return Response(status, [orjson.dumps({"error": message})], media_type)


def too_large(size: int | None, limit: int) -> BodyTooLarge:
    """Make the error for a body over the limit, with the text of Triton 2.73."""
    told = f"over {limit}" if size is None else size
    return BodyTooLarge(
        f"Request JSON size of {told} bytes exceeds the maximum allowed value of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
