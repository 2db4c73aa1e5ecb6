"""Parses the head of a predict request: options in the query, timeout and content types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header

from fovea_engines.results.new_image import MediaType
from fovea_engines.results.options import PredictOptions
from fovea_preprocess.errors import InvalidOption, InvalidRequest
from fovea_server.dataplane.options import parse_options
from fovea_server.http.messages import weights

_ANSWERS: dict[str, MediaType | None] = {
    "application/json": None,
    "*/*": None,
    "image/jpeg": "image/jpeg",
    "image/png": "image/png",
    "image/webp": "image/webp",
    "image/*": "image/jpeg",
}

# Most clients send the same few query strings and headers in every request.
_cached = lru_cache(maxsize=64)


@_cached
def query_values(query: str) -> Mapping[str, str]:
    """Parse a query. The value of a repeated name, such as `classes=0&classes=5`, is a list."""
    values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


@_cached
def query_options(query: str) -> PredictOptions:
    """Parse the options in a query.

    Raises:
        InvalidOption: an option is unknown or invalid; the message names it.
    """
    return parse_options(query_values(query))


@_cached
def wraps_images(content_type: str) -> bool:
    """Return whether a Content-Type is a form or JSON, which contain images.

    Other bodies are a single image.
    """
    kind = parse_options_header(content_type)[0]
    return kind == b"application/json" or kind.startswith(b"multipart/")


def body_kind(operation: str, content_type: str) -> str:
    """Return the content type of a body.

    Raises:
        InvalidRequest: the operation does not accept this type.
    """
    if operation == "predict/json":
        return "application/json"
    kind = parse_options_header(content_type)[0]
    if operation == "predict/form" and kind != b"multipart/form-data":
        raise InvalidRequest(
            "/predict/form accepts only multipart/form-data, but the Content-Type is "
            f"'{content_type}': send an image to /predict, or JSON to /predict/json"
        )
    return content_type


@_cached
def accepted_image(accept: str) -> MediaType | None:
    """Return the image format that an Accept header prefers; None for JSON."""
    best: MediaType | None = None
    most = 0.0
    for kind, weight in weights(accept):
        if kind == "image/webp" and "text/html" in accept:
            continue  # a browser accepts WebP for any URL, but does not prefer it to JSON
        if kind in _ANSWERS and weight > most:
            most, best = weight, _ANSWERS[kind]
    return best


def timeout_of(text: str | None) -> float | None:
    """Parse X-Request-Timeout-Ms; return seconds, or None if the header is absent.

    Raises:
        InvalidOption: the value is not a number from 1 to 3,600,000.
    """
    if text is None:
        return None
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = -1.0
    if not 0 < milliseconds <= 3_600_000:
        raise InvalidOption(
            f"X-Request-Timeout-Ms is '{text}', but must be a number of milliseconds from 1 to "
            "3600000"
        )
    return milliseconds / 1e3
