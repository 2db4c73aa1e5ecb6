"""Error code -> HTTP status: the one table."""

from __future__ import annotations

from fovea_preprocess.errors import FoveaError

_HTTP = {
    "invalid_request": 400,
    "invalid_image": 400,
    "image_too_large": 413,
    "invalid_option": 422,
    "body_too_large": 413,
    "body_timeout": 408,
    "fetch_refused": 400,
    "not_found": 404,
    "unavailable": 503,
    "model_not_ready": 503,
    "queue_full": 429,
    "deadline_exceeded": 504,
    "shutting_down": 503,
}


def http_status(error: FoveaError) -> int:
    """Status of an answer that carries this error; what is not listed is the server's fault."""
    return _HTTP.get(error.code, 500)
