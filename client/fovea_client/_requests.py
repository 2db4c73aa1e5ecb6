"""Builds requests as plain values."""

from __future__ import annotations

import base64
import csv
import io
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, TypedDict, Unpack, cast
from urllib.parse import quote, urlencode

from fovea_client.images import Channels, ImageSource, Url, image_to_send, multipart

# Options that are not part of the query: the path contains the version, and `channels` is only
# used to encode the image.
_OF_CALL = ("version", "channels")

ImageFormat = Literal["image/jpeg", "image/png", "image/webp"]
MaskFormat = Literal["rle", "polygon", "png", "none"]
VectorFormat = Literal["base64", "list"]


class PredictOptions(TypedDict, total=False):
    """Options of one request. The server has a default for each option that is missing.

    Attributes:
        version: version of the model; by default the current version.
        conf: smallest score of a detection, 0 to 1; a classifier has `top_k` instead.
        iou: a box that overlaps a better box by more than this IoU is dropped, 0 to 1.
        classes: names (str) or ids (int) of the classes to keep, or text such as "person,5".
        max_det: largest number of detections per image, from 1 up.
        top_k: largest number of classes that a classifier returns per image, 1 to 1000.
        agnostic: also drop overlapping boxes of different classes.
        mask: encoding of masks: "rle", "polygon", "png" or "none". Saliency maps, depth maps and
            generated images are PNG files, or are left out with "none".
        labels: texts that describe the classes, or text such as "a cat,a dog". They are for
            classification by a model of images and texts, such as CLIP, and for an open-vocabulary
            detector.
        normalize: divide an embedding by its length; on by default.
        vector: encoding of an embedding in JSON: "base64" or "list".
        tile: cut the image into tiles: their side in pixels, or columns and rows such as "3x2".
        overlap: fraction of a tile's side that overlaps the next tile, 0 to 0.9.
        track: tracker that gives objects ids across frames: "bytetrack", "sort", "ocsort" or
            "botsort".
        stream_id: name of the camera or video, for `track`.
        frame: number of the frame in its stream, from 0 up, for `track`; by default the next.
        track_high: smallest score of a box that is matched first, for `track`; by default a little
            above `conf`.
        track_new: smallest score of a box that begins a track, for `track`; by default a little
            above `conf`.
        min_frames: number of frames with the object before it gets an id, for `track`.
        timeout_ms: timeout of the request in milliseconds, more than 0. The server aborts the
            request after this time. The time includes the client's waits and retries.
        channels: order of the channels of arrays: "RGB" (the default), or "BGR" as in OpenCV.
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
    """One HTTP request that is not sent yet.

    Attributes:
        path: path with the query, percent-encoded.
        timeout_ms: milliseconds from the first attempt on. The header with the remaining time is
            added when the request is sent.
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
    """Build a request to run a model on images. If an image is a path, its file is read.

    If `accept` is an image format, the response is the image with its results drawn in. The body of
    a request with one image is the image file. Several images are sent as a multipart form, in
    their order. If one of the images is a URL, all images are sent as JSON.

    Raises:
        ValueError: there are no images, or an image or option is wrong.
        TypeError: an image has another type, or an option is unknown.
        OSError: a file cannot be read.
    """
    if not images:
        raise ValueError("the list of images is empty: give at least one")
    timeout_ms = options.pop("timeout_ms", None)
    if timeout_ms is not None and not timeout_ms > 0:
        raise ValueError(
            f"timeout_ms must be a positive number of milliseconds, not {timeout_ms!r}"
        )
    path = images_path(model, "predict", options)
    content_type, body = body_of(images, options.get("channels", "RGB"))
    return Request("POST", path, {"accept": accept, "content-type": content_type}, body, timeout_ms)


def images_path(
    model: str, operation: Literal["predict", "stream"], options: PredictOptions
) -> str:
    """Return the path and query of an operation on images.

    Raises:
        TypeError: an option is unknown.
    """
    options = _rename_former(options)
    for name in sorted(options.keys() - PredictOptions.__annotations__.keys()):
        known = PredictOptions.__annotations__
        # A cutoff of 0.55 also suggests `conf` for `confidence`.
        close = get_close_matches(name, known, 1, 0.55)
        raise TypeError(f"unknown option {name}" + (f"; did you mean {close[0]}?" if close else ""))
    of_images = {name: value for name, value in options.items() if name not in _OF_CALL}
    return model_path(model, options.get("version")) + f"/{operation}" + query(of_images)


def _rename_former(options: PredictOptions) -> PredictOptions:
    """Replace the former name `normalise` with `normalize`."""
    if "normalise" not in options:
        return options
    if "normalize" in options:
        raise TypeError("give normalize or its former name normalise, not both")
    warn_of_normalise()
    renamed = dict(options)
    renamed["normalize"] = renamed.pop("normalise")
    # A type checker cannot see that only the keys of PredictOptions are left.
    return cast("PredictOptions", renamed)


def warn_of_normalise() -> None:
    """Warn that the option `normalise` of version 0.1 has another name now."""
    warnings.warn(
        "the option normalise is now normalize; the former name will be removed in 0.3",
        DeprecationWarning,
        stacklevel=2,
    )


def query(options: Mapping[str, object]) -> str:
    """Return the query string of all options that are not None.

    The string begins with a question mark, or is empty if there are no options.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & {"classes", "labels"}:
        given[name] = _format_list(cast("Iterable[int | str]", given[name]))
    given |= {name: str(each).lower() for name, each in given.items() if isinstance(each, bool)}
    return f"?{urlencode(given)}" if given else ""


def body_of(sources: Sequence[ImageSource], channels: Channels) -> tuple[str, bytes]:
    """Return the content type and the body of a request with images. Image files are read."""
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
    """Return the path of the readiness check of the server, or of a model."""
    return "/v2/health/ready" if model is None else f"{model_path(model, None, 'v2')}/ready"


def _format_list(entries: Iterable[int | str]) -> str:
    """Return a list as one line of CSV with every name in double quotes. A str stays unchanged."""
    if isinstance(entries, str):
        return entries
    line = io.StringIO()
    csv.writer(line, lineterminator="", quoting=csv.QUOTE_NONNUMERIC).writerow(entries)
    return line.getvalue()
