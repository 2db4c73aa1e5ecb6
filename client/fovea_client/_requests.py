"""Builds requests as plain values."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict, Unpack, cast
from urllib.parse import quote, urlencode

from fovea_client.images import Channels, ImageSource, Url, image_to_send, multipart

# Options that are not of an image, or have another place.
_OF_CALL = ("version", "channels")

ImageFormat = Literal["image/jpeg", "image/png", "image/webp"]
MaskFormat = Literal["rle", "polygon", "png", "none"]
VectorFormat = Literal["base64", "list"]


class PredictOptions(TypedDict, total=False):
    """Options of one request; the server chooses a default for missing ones.

    Attributes:
        version: version of the model; by default the newest.
        conf: least score of a detection, 0 to 1; a classifier has `top_k` instead.
        iou: boxes that overlap a better one by more than this are dropped, 0 to 1.
        classes: names (str) or ids (int) of the classes to keep, or text with commas such as
            "person,5".
        max_det: most detections per image, from 1 up.
        top_k: the largest number of classes of an image that a classifier returns, 1 to 1000.
        agnostic: suppress across classes as well.
        mask: form of masks: "rle", "polygon", "png" or "none"; maps of saliency and depth, and
            pictures, are PNG files, or none.
        labels: texts that a model of images and texts, such as CLIP, classifies the image by, or
            that a detector which takes texts finds; or text with commas such as "a cat,a dog".
        normalize: divide an embedding by its length, the default.
        vector: form of a vector in JSON: "base64" or "list".
        tile: side in pixels of the tiles that the image is cut into, or columns and rows: "3x2".
        overlap: share of a tile that the next one repeats, 0 to .9.
        track: objects keep ids over frames: "bytetrack", "sort", "ocsort" or "botsort".
        stream_id: of `track`: a name for the camera or video of the frame.
        frame: of `track`: number of the frame in its stream, from 0 up; default the next.
        track_high, track_new: of `track`: scores from which a box is matched first, and from which
            it begins a track; default a little above `conf`.
        min_frames: of `track`: frames in which an object is seen until it gets its id.
        timeout_ms: time after which the server gives the request up, milliseconds, more than 0;
            waits and further attempts count.
        channels: order of the channels of arrays: "RGB", the default, or "BGR", as OpenCV has them.
    """

    version: int | str | None
    conf: float | None
    iou: float | None
    classes: Iterable[int | str] | None
    max_det: int | None
    top_k: int | None
    agnostic: bool | None
    mask: MaskFormat | None
    labels: Iterable[str] | None
    normalize: bool | None
    vector: VectorFormat | None
    tile: int | str | None
    overlap: float | None
    track: str | None
    stream_id: str | None
    frame: int | None
    track_high: float | None
    track_new: float | None
    min_frames: int | None
    timeout_ms: float | None
    channels: Channels


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, not yet sent; its path has the query, percent-encoded.

    `timeout_ms` counts from the first attempt, so it is written as the request is sent.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout_ms: float | None = None


def predict(
    model: str,
    images: Sequence[ImageSource],
    *,
    accept: ImageFormat | Literal["application/json"] = "application/json",
    **options: Unpack[PredictOptions],
) -> Request:
    """Request what is on images, or one image with it drawn in; reads the files.

    One image is the raw body, several are multipart in their order, and with addresses among them
    they are JSON. `PredictOptions` lists the options.

    Raises:
        ValueError: there are no images, or one is not right; also TypeError and OSError.
    """
    if not images:
        raise ValueError("there is no image to send")
    timeout_ms = options.pop("timeout_ms", None)
    if timeout_ms is not None and not timeout_ms > 0:
        raise ValueError(f"timeout_ms is a positive number of milliseconds, not {timeout_ms!r}")
    path = images_path(model, "predict", options)
    content_type, body = body_of(images, options.get("channels", "RGB"))
    return Request("POST", path, {"accept": accept, "content-type": content_type}, body, timeout_ms)


def images_path(
    model: str, operation: Literal["predict", "stream"], options: PredictOptions
) -> str:
    """Return the path of an operation on images; TypeError for an option that does not exist."""
    if unknown := options.keys() - PredictOptions.__annotations__.keys():
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}")
    of_images = {name: value for name, value in options.items() if name not in _OF_CALL}
    return model_path(model, options.get("version")) + f"/{operation}" + query(of_images)


def query(options: Mapping[str, object]) -> str:
    """Format the options that are not None, with their question mark."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & {"classes", "labels"}:
        given[name] = _format_list(cast("Iterable[int | str]", given[name]))
    given |= {name: str(each).lower() for name, each in given.items() if isinstance(each, bool)}
    return f"?{urlencode(given)}" if given else ""


def body_of(sources: Sequence[ImageSource], channels: Channels) -> tuple[str, bytes]:
    """Return the content type and the body of images; reads their files."""
    images = [image_to_send(source, channels) for source in sources]
    files = [image for image in images if isinstance(image, bytes)]
    if len(files) < len(images):
        entries = [
            {"url": image.address}
            if isinstance(image, Url)
            else {"data": base64.b64encode(image).decode()}
            for image in images
        ]
        return "application/json", json.dumps({"images": entries}).encode()
    return ("application/octet-stream", files[0]) if len(files) == 1 else multipart(files)


def model_path(model: str, version: int | str | None, api: Literal["v1", "v2"] = "v1") -> str:
    """Return the path of a model, or of one of its versions."""
    path = f"/{api}/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def ready_path(model: str | None) -> str:
    """Return the path of the readiness of the server, or of one of its models."""
    return "/v2/health/ready" if model is None else f"{model_path(model, None, 'v2')}/ready"


def _format_list(entries: Iterable[int | str]) -> str:
    """Format an option as text, with every name in double quotes."""
    if isinstance(entries, str):
        return entries
    line = io.StringIO()
    csv.writer(line, lineterminator="", quoting=csv.QUOTE_NONNUMERIC).writerow(entries)
    return line.getvalue()
