"""Searches as OpenAPI describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from fovea_server.http.v1.openapi import described_images
from fovea_server.http.v1.schemas import Absent, ErrorDetail, TimingMs
from fovea_server.search.index import DEFAULT, MAX_MATCHES

MATCHES = 10
"""As many as are answered if a request does not say."""


class Match(BaseModel):
    """An image of an index; the score is the cosine of both vectors, -1 to 1."""

    name: str
    score: float = Field(description="the cosine of both vectors", ge=-1, le=1)
    thumbnail: str | Absent = Field(
        None, description="with thumbnails, where the index has them: a JPEG file in base64"
    )


class ImageMatches(BaseModel):
    """The matches of one image of a request, or `error`."""

    matches: list[Match] | Absent = Field(None, description="best first")
    error: ErrorDetail | Absent = Field(None, description="why this image failed")


class SearchAnswer(BaseModel):
    """Images of an index that are most like those of a request, in their order."""

    model: str
    version: str
    index: str = Field(description="its name")
    size: int = Field(description="number of images that were compared")
    images: list[ImageMatches]
    timing_ms: TimingMs


_PARAMETERS = [
    {
        "name": "k",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_MATCHES},
        "description": f"most matches of an image; default {MATCHES}",
    },
    {
        "name": "index",
        "in": "query",
        "required": False,
        "schema": {"type": "string"},
        "description": f"name of the index; default {DEFAULT}",
    },
    {
        "name": "thumbnails",
        "in": "query",
        "required": False,
        "schema": {"type": "boolean"},
        "description": "answer the pictures of matches, too, where the index has them",
    },
]
_EXAMPLE = {
    "model": "reid",
    "version": "1",
    "index": "index",
    "size": 1200,
    "images": [
        {
            "matches": [
                {"name": "anna/03.jpg", "score": 0.91344},
                {"name": "anna/11.jpg", "score": 0.89702},
            ]
        }
    ],
    "timing_ms": {
        "decode": 1.2,
        "letterbox": 0.3,
        "queue": 0.1,
        "infer": 9.8,
        "postprocess": 0.0,
        "total": 11.5,
    },
}


_TEXT = {
    "name": "text",
    "in": "query",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "words, of a model of images and texts such as CLIP",
    "example": "a red seven",
}


def described_words(operation_id: str) -> dict[str, Any]:
    """Describe a route without a body for FastAPI."""
    made = described_search(operation_id)
    extra = made["openapi_extra"]
    del extra["requestBody"]
    extra["parameters"] = [_TEXT, *extra["parameters"]]
    return made


def described_search(operation_id: str) -> dict[str, Any]:
    """Describe a route for FastAPI."""
    errors = 400, 403, 404, 413, 422, 429, 503, 504
    made = described_images(
        operation_id, SearchAnswer, "application/octet-stream", _PARAMETERS, *errors
    )
    example = {"application/json": {"examples": {"matches": {"value": _EXAMPLE}}}}
    made["responses"][200] = {"content": example}
    made["responses"][404]["description"] = "no such model, version or index"
    return made
