"""Builds requests as plain values, without sending them."""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict
from urllib.parse import quote, urlencode

ImageFormat = Literal["image/jpeg", "image/png"]


class PredictOptions(TypedDict, total=False):
    """Options of one request; the server chooses a default for missing ones.

    Attributes:
        version: version of the model; by default the newest.
        conf: least score of a detection, 0 to 1.
        iou: boxes that overlap a better one by more than this are dropped, 0 to 1.
        classes: names (str) or ids (int) of the classes to keep, or text with commas such as
            "person,5".
        max_det: most detections per image, from 1 up.
        agnostic: suppress across classes as well.
        timeout_ms: time after which the server gives the request up, milliseconds.
    """

    version: int | str | None
    conf: float | None
    iou: float | None
    classes: Iterable[int | str] | None
    max_det: int | None
    agnostic: bool | None
    timeout_ms: float | None


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, not yet sent; its path has the query, percent-encoded."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def predict(
    model: str,
    images: Sequence[bytes],
    *,
    accept: ImageFormat | Literal["application/json"] = "application/json",
    version: int | str | None = None,
    conf: float | None = None,
    iou: float | None = None,
    classes: Iterable[int | str] | None = None,
    max_det: int | None = None,
    agnostic: bool | None = None,
    timeout_ms: float | None = None,
) -> Request:
    """Request the detections in encoded images, or one image with them drawn in.

    One image is the raw body, several are multipart in their order. The options are those of
    `PredictOptions`.

    Raises:
        ValueError: there are no images.
    """
    if not images:
        raise ValueError("there is no image to send")
    options = {
        "conf": conf,
        "iou": iou,
        "classes": None if classes is None else _classes(classes),
        "max_det": max_det,
        "agnostic": None if agnostic is None else str(agnostic).lower(),
    }
    given = {name: value for name, value in options.items() if value is not None}
    path = _path(model, version) + "/predict" + (f"?{urlencode(given)}" if given else "")

    if len(images) == 1:
        content_type, body = "application/octet-stream", images[0]
    else:
        content_type, body = _multipart(images)
    headers = {"accept": accept, "content-type": content_type}
    if timeout_ms is not None:
        headers["x-request-timeout-ms"] = f"{timeout_ms:g}"
    return Request("POST", path, headers, body)


def _path(model: str, version: int | str | None) -> str:
    path = f"/v1/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def _classes(classes: Iterable[int | str]) -> str:
    """Format the option as text, with every name in double quotes."""
    if isinstance(classes, str):
        return classes
    line = io.StringIO()
    csv.writer(line, lineterminator="", quoting=csv.QUOTE_NONNUMERIC).writerow(classes)
    return line.getvalue()


def models() -> Request:
    """Request the list of models."""
    return Request("GET", "/v1/models")


def model(name: str, version: int | str | None = None) -> Request:
    """Request the description of a model."""
    return Request("GET", _path(name, version))


def ready(model: str | None = None) -> Request:
    """Request the readiness of the server, or of one of its models."""
    if model is None:
        return Request("GET", "/v2/health/ready")
    return Request("GET", f"/v2/models/{quote(model, safe='')}/ready")


def _multipart(images: Sequence[bytes]) -> tuple[str, bytes]:
    # With 128 random bits, no image contains its own boundary, so the bodies need no search.
    boundary = secrets.token_hex(16)
    pieces: list[bytes] = []
    for index, image in enumerate(images):
        head = (
            f"--{boundary}\r\n"
            f'Content-Disposition: form-data; name="images"; filename="{index}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        pieces += (head.encode(), image, b"\r\n")
    pieces.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", b"".join(pieces)
