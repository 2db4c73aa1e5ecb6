"""Parses the requests of Roboflow's clients.

Options for functions that this server does not have (contrast, active learning, billing) are
ignored, because clients send them by default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fovea_engines.results.options import MAX_DETECTIONS, MAX_TOP_K, PredictOptions
from fovea_preprocess.errors import InvalidOption, InvalidRequest, NotFound
from fovea_server.http.base64_text import base64_image
from fovea_server.http.v1.body import Source, Url, empty, json_object, read_form
from fovea_server.integrations.request_handling import share

# Default options of Roboflow's inference server: minimum score, IoU of overlapping objects, and
# number of objects.
_CONFIDENCE, _OVERLAP, _MAX = 0.4, 0.3, 300
_IMAGE = '{"type": "base64" or "url", "value": TEXT}'


@dataclass(frozen=True, slots=True)
class PredictCall:
    """A request to a model.

    Attributes:
        name: name of the model.
        version: version of the model; None for the current version.
        sources: images of the request.
        several: True if the images were sent as a list. The response is then a list, too.
        options: options for object detection; see `options_for`.
        run_lengths: True to return masks as COCO run lengths, False to return polygons.
        least_keypoint: minimum score of keypoints. Keypoints with lower scores are left out.
        draw: True if the response must include an image with the results.
        key: API key in the body; "" if there is none.
    """

    name: str
    version: int | None
    sources: list[Source]
    several: bool
    options: PredictOptions
    run_lengths: bool
    least_keypoint: float
    draw: bool
    key: str = ""

    def options_for(self, task: str) -> PredictOptions:
        """Return the options for a task, without options that the task would reject."""
        match task:
            case "segment":
                return replace(self.options, mask="rle" if self.run_lengths else "polygon")
            case "classify":
                return PredictOptions(top_k=MAX_TOP_K, classes=self.options.classes)
        return self.options


def model_of(model_id: object) -> tuple[str, int | None]:
    """Split a model ID, NAME/VERSION or NAME.

    Raises:
        InvalidRequest: the ID has no name.
        NotFound: the version is not a number.
    """
    name, _, version = str(model_id or "").partition("/")
    if not name:
        raise InvalidRequest(
            "the request has no model name: write model_id as NAME/VERSION or NAME"
        )
    if not version:
        return name, None
    if not re.fullmatch(r"[1-9][0-9]{0,8}", version):
        raise NotFound(
            f"unknown version '{version[:60]}': write model_id as NAME/VERSION, where VERSION is "
            "a whole number"
        )
    return name, int(version)


def parse_request(body: bytes, most: int, max_images: int) -> PredictCall:
    """Parse a JSON request to `/infer/...`, which contains the model, images and options.

    Raises:
        InvalidRequest, InvalidOption, NotFound: the request is invalid.
    """
    given = json_object(body, most)
    name, version = model_of(given.get("model_id"))
    images = given.get("image")
    several = isinstance(images, list)
    sources = [_image(each) for each in (images if isinstance(images, list) else [images])]
    if not 0 < len(sources) <= max_images:
        raise InvalidRequest(
            f"the request has {len(sources)} images, but must have 1 to {max_images}"
        )
    return PredictCall(
        name,
        version,
        sources,
        several,
        _options(given, given.get("iou_threshold")),
        run_lengths=given.get("response_mask_format") == "rle",
        least_keypoint=_least_keypoint(given),
        draw=given.get("visualize_predictions") is True,
        key=str(given.get("api_key") or ""),
    )


def parse_legacy(model_id: str, query: Mapping[str, str], kind: str, body: bytes) -> PredictCall:
    """Parse a request to `/NAME/VERSION`. Options are in the query, and the image is base64 text.

    Raises:
        InvalidRequest, InvalidOption, NotFound: the request is invalid.
    """
    name, version = model_of(model_id)
    given: dict[str, Any] = dict(query)
    # In this route the two options may also be percentages.
    for percent in ("confidence", "overlap"):
        if re.fullmatch(r"[1-9][0-9]*(\.[0-9]+)?", given.get(percent, "")):
            given[percent] = float(given[percent]) / 100
    if "image" in query:
        source: Source = Url(query["image"])
    elif not body:
        raise empty()
    elif kind.startswith("multipart/"):
        source = read_form(body, kind, 1)[0][0]
    else:
        source = _decode(body.decode("latin-1"))
    return PredictCall(
        name,
        version,
        [source],
        False,
        _options(given, given.get("overlap")),
        run_lengths=query.get("response_mask_format") == "rle",
        least_keypoint=_least_keypoint(given),
        draw=query.get("format") == "image",
    )


def _options(given: Mapping[str, Any], overlap: object) -> PredictOptions:
    confidence = given.get("confidence")
    classes = given.get("class_filter")
    return PredictOptions(
        # Ignore texts here: they select thresholds that are stored with Roboflow's own models.
        conf=_CONFIDENCE
        if confidence in (None, "best", "default")
        else share("confidence", confidence),
        iou=_OVERLAP if overlap is None else share("iou_threshold", overlap),
        max_det=_whole("max_detections", given.get("max_detections", _MAX), MAX_DETECTIONS),
        agnostic=given.get("class_agnostic_nms") is True,
        classes=tuple(map(str, classes)) if isinstance(classes, list) and classes else None,
    )


def _least_keypoint(given: Mapping[str, Any]) -> float:
    least = given.get("keypoint_confidence")
    return 0.0 if least is None else share("keypoint_confidence", least)


def _whole(name: str, value: object, most: int) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 10) or not 1 <= int(text) <= most:
        raise InvalidOption(f"{name} is '{text[:60]}'; it must be a whole number from 1 to {most}")
    return int(text)


def _image(image: object) -> Source:
    match image:
        case {"type": "base64", "value": str(text)}:
            return _decode(text)
        case {"type": "url", "value": str(address)}:
            return Url(address)
        case {"type": "numpy"}:
            raise InvalidRequest(
                "images of type numpy are not supported, because pickled Python objects can run "
                "code: send the type base64"
            )
        case _:
            raise InvalidRequest(
                f"image has an unknown form: send {_IMAGE}, or a list of such objects"
            )


def _decode(text: str) -> Source:
    return base64_image(text, "the image")
