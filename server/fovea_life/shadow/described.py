"""Routes of shadows as OpenAPI describes them, with examples."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from fovea_life.shadow.documents import ShadowDocument, ShadowRequest
from fovea_server.http.v1.openapi import described

_ASKED = {"version": 7, "share": 0.1, "images": 1000}
_EXAMPLE = {
    "model": "yolov8n",
    **_ASKED,
    **{"against": 6, "max_disagreement": None, "state": "running", "reason": ""},
    "began": "2026-11-27T20:34:34Z",
    "skipped": {"waiting": 12, "busy": 0},
    "report": {
        **{"images": 310, "disagreement": 0.034, "interval": [0.026, 0.045], "shared": None},
        "overlap_of": "IoU",
        "all": (
            figures := {
                **{"objects": 1204, "missed": 24, "extra": 17},
                **{"overlap": 0.962, "score_drift": -0.004},
            }
        ),
        "classes": {"person": figures},
        "sizes": {"medium": figures},
        "changes": [{"live": "truck", "candidate": "car", "count": 5}],
        **{"failed": 0, "error": ""},
        "worst": [
            {
                **{"picture": "41.jpg", "request_id": "4ec042541e8a60dc0000005c"},
                **{"missed": 3, "extra": 1, "lost": 2.4},
            }
        ],
    },
}


def described_shadow(name: str, *errors: int) -> dict[str, Any]:
    """Describe a route that answers with a shadow."""
    route = described(name, ShadowDocument, 403, 404, 503, *errors)
    route["responses"][200] = {"content": _json(_EXAMPLE)}
    return route


def described_begin(name: str) -> dict[str, Any]:
    """Describe the route that begins one, and reads its body itself."""
    content = _json(_ASKED)
    content["application/json"]["schema"] = ShadowRequest.model_json_schema()
    body = {"requestBody": {"required": True, "content": content}}
    return described_shadow(name, 400, 413, 422) | {"openapi_extra": body}


def described_file(name: str, text: str, media: str) -> dict[str, Any]:
    """Describe a route that answers with a file."""
    route = described(name, ShadowDocument, 403, 404, 503)
    schema = {"type": "string", "format": "binary"}
    route["responses"][200] = {"description": text, "content": {media: {"schema": schema}}}
    return route | {"response_model": None, "response_class": Response}


def _json(example: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"application/json": {"examples": {"shadow": {"value": example}}}}
