"""Builds requests as plain values, and reads answers into results or errors; sends nothing."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import numpy as np
from httpx import Response

from fovea_client._masks import read_mask
from fovea_client.answers import (
    Detection,
    ImageError,
    ImageResult,
    Model,
    ModelSummary,
    ModelVersion,
    Prediction,
    ScoredClass,
    Tensor,
    TensorMetadata,
    Timing,
)
from fovea_client.errors import QueueFull, ServerError, UnexpectedAnswer
from fovea_client.images import multipart
from fovea_client.maps import Depth, Saliency, read_map, read_semantic
from fovea_client.shapes import Box, Corner, Keypoint, Rotated

ImageFormat = Literal["image/jpeg", "image/png"]
MaskFormat = Literal["rle", "polygon", "png", "none"]
_Shape = TypeVar("_Shape", Box, Corner, Rotated)


class PredictOptions(TypedDict, total=False):
    """Options of one request; the server chooses a default for missing ones.

    Attributes:
        version: version of the model; by default the newest.
        conf: least score of a detection, 0 to 1; a classifier has `top_k` instead.
        iou: boxes that overlap a better one by more than this are dropped, 0 to 1.
        classes: names (str) or ids (int) of the classes to keep, or text with commas such as
            "person,5".
        max_det: most detections per image, from 1 up.
        top_k: most classes an image, of a classifier, 1 to 1000.
        agnostic: suppress across classes as well.
        mask: form of masks: "rle", "polygon", "png" or "none"; maps of saliency and depth are PNG
            files, or none.
        tile: side in pixels of the tiles that the image is cut into, or columns and rows: "3x2".
        overlap: share of a tile that the next one repeats, 0 to .9.
        timeout_ms: time after which the server gives the request up, milliseconds.
    """

    version: int | str | None
    conf: float | None
    iou: float | None
    classes: Iterable[int | str] | None
    max_det: int | None
    top_k: int | None
    agnostic: bool | None
    mask: MaskFormat | None
    tile: int | str | None
    overlap: float | None
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
    top_k: int | None = None,
    agnostic: bool | None = None,
    mask: MaskFormat | None = None,
    tile: int | str | None = None,
    overlap: float | None = None,
    timeout_ms: float | None = None,
) -> Request:
    """Request what is on encoded images, or one image with it drawn in.

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
        "top_k": top_k,
        "agnostic": None if agnostic is None else str(agnostic).lower(),
        "mask": mask,
        "tile": tile,
        "overlap": overlap,
    }
    given = {name: value for name, value in options.items() if value is not None}
    path = model_path(model, version) + "/predict" + (f"?{urlencode(given)}" if given else "")

    if len(images) == 1:
        content_type, body = "application/octet-stream", images[0]
    else:
        content_type, body = multipart(images)
    headers = {"accept": accept, "content-type": content_type}
    if timeout_ms is not None:
        headers["x-request-timeout-ms"] = f"{timeout_ms:g}"
    return Request("POST", path, headers, body)


def model_path(model: str, version: int | str | None) -> str:
    """Return the path of a model, or of one of its versions."""
    path = f"/v1/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def _classes(classes: Iterable[int | str]) -> str:
    """Format the option as text, with every name in double quotes."""
    if isinstance(classes, str):
        return classes
    line = io.StringIO()
    csv.writer(line, lineterminator="", quoting=csv.QUOTE_NONNUMERIC).writerow(classes)
    return line.getvalue()


def ready_path(model: str | None) -> str:
    """Return the path of the readiness of the server, or of one of its models."""
    return "/v2/health/ready" if model is None else f"/v2/models/{quote(model, safe='')}/ready"


def prediction(response: Response) -> Prediction:
    """Read the answer to a predict request; an error of the server is a `ServerError`."""
    with _reading(response, "a prediction") as answer:
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
    with _reading(response, "a list of models") as answer:
        return tuple(ModelSummary(**_summary(ModelSummary, each)) for each in answer["models"])


def model(response: Response) -> Model:
    """Read the description of a model; raises as `prediction` does."""
    with _reading(response, "a model") as answer:
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
    return response.content


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
    try:
        error = json.loads(response.content)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (KeyError, TypeError, ValueError):
        # A proxy answers in its own words; their first line is usually the most useful one.
        text = response.content[:200].decode("utf-8", "replace").strip()
        code, message = f"http_{response.status_code}", text or "the answer has no content"
    kind = QueueFull if response.status_code == 429 else ServerError
    raise kind(response.status_code, code, message, _seconds(response.headers.get("retry-after")))


@contextmanager
def _reading(response: Response, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON of an answer; errors while it is read become `UnexpectedAnswer`."""
    raise_for_status(response)
    try:
        yield json.loads(response.content)
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswer(
            f"the answer is not {kind} ({type(error).__name__}: {error}); "
            "is this the address of a Fovea server?"
        ) from error


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
        rotated=_numbers(Rotated, value["rotated"]) if "rotated" in value else None,
        corners=tuple(_numbers(Corner, each) for each in value.get("corners", ())),
    )


def _numbers(kind: type[_Shape], value: dict[str, Any]) -> _Shape:
    return kind(*(float(value[field.name]) for field in fields(kind)))


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
