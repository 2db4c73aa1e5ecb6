"""The sans-IO half: requests as values, answers as values."""

import io
import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from email.message import Message
from email.parser import BytesParser
from typing import Any, get_args, get_type_hints
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
from httpx import Response
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import fovea_client
from fovea_client import (
    Box,
    Detection,
    ImageError,
    ImageResult,
    MaskFile,
    Prediction,
    QueueFull,
    RunLengths,
    ServerError,
    UnexpectedAnswer,
    _requests,
    _responses,
)
from fovea_client._attempts import wait_s
from fovea_client.errors import ConnectionFailed
from fovea_client.png import read_grey

ANSWER = {
    "model": "yolov8n",
    "version": "3",
    "task": "detect",
    "images": [
        {
            "width": 810,
            "height": 1080,
            "orientation": 6,
            "detections": [
                {
                    "box": {"x1": 22.25, "y1": 231.5, "x2": 805.0, "y2": 756.75},
                    "score": 0.875,
                    "class_id": 5,
                    "class_name": "bus",
                }
            ],
        },
        {"error": {"code": "invalid_image", "message": "the file is cut off"}},
    ],
    "timing_ms": {
        "decode": 2.5,
        "letterbox": 1.5,
        "queue": 0.25,
        "infer": 54.0,
        "postprocess": 0.5,
        "total": 58.75,
    },
}


def response(status: int, body: object, **headers: str) -> Response:
    return Response(status, headers=headers, content=json.dumps(body).encode())


def test_all_is_complete() -> None:
    public = {
        name
        for name, value in vars(fovea_client).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "").startswith(("fovea_client", "typing", "types"))
    }
    assert set(fovea_client.__all__) >= public
    assert all(hasattr(fovea_client, name) for name in fovea_client.__all__)
    assert set(fovea_client.__all__) >= {
        name
        for name, value in vars(fovea_client.errors).items()
        if isinstance(value, type) and issubclass(value, fovea_client.FoveaClientError)
    }


def classes_in(hint: Any) -> Iterator[type]:
    """The dataclasses of a type, and those of their fields."""
    if is_dataclass(hint):
        yield hint
        hints = [get_type_hints(hint)[each.name] for each in fields(hint)]
    else:
        hints = get_args(hint)
    for each in hints:
        yield from classes_in(each)


def test_every_class_of_an_answer_can_be_imported() -> None:
    assert {kind.__name__ for kind in classes_in(Prediction)} <= set(fovea_client.__all__)


def test_one_image_is_the_raw_body() -> None:
    request = _requests.predict("yolov8n", [b"\xff\xd8 image"])
    assert (request.method, request.path) == ("POST", "/v1/models/yolov8n/predict")
    assert request.body == b"\xff\xd8 image"
    assert request.headers == {
        "accept": "application/json",
        "content-type": "application/octet-stream",
    }


def test_only_given_options_travel() -> None:
    request = _requests.predict(
        "m", [b"x"], version=2, conf=0.0, classes=(0, 16), agnostic=False, timeout_ms=250
    )
    url = urlsplit(request.path)
    assert url.path == "/v1/models/m/versions/2/predict"
    assert parse_qs(url.query) == {"conf": ["0.0"], "classes": ["0,16"], "agnostic": ["false"]}
    assert request.timeout_ms == 250


@pytest.mark.parametrize("name", ["a/../b", "ü ?#%", "../v2/health/live"])
def test_a_name_stays_one_segment_of_the_path(name: str) -> None:
    for path in (_requests.predict(name, [b"x"]).path, _requests.ready_path(name)):
        parts = path.split("/")
        assert len(parts) == 5
        assert unquote(parts[3]) == name


def test_several_images_travel_as_multipart_in_order() -> None:
    images = [b"first\r\n--", b"", b"\x00\xff" * 500]
    request = _requests.predict("m", images)
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    form: Message = BytesParser().parsebytes(head + request.body)
    assert form.get_content_type() == "multipart/form-data"
    assert [part.get_payload(decode=True) for part in form.walk()][1:] == images
    assert [part.get_filename() for part in form.walk()][1:] == ["0", "1", "2"]


def test_no_image_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="list of images is empty"):
        _requests.predict("m", [])


@pytest.mark.parametrize("timeout_ms", [0, -1, float("nan")])
def test_a_deadline_is_later_than_now(timeout_ms: float) -> None:
    with pytest.raises(ValueError, match="timeout_ms"):
        _requests.predict("m", [b"x"], timeout_ms=timeout_ms)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_damaged_png_is_a_value_error(place: int, value: int) -> None:
    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8)).save(file, "PNG")
    data = bytearray(file.getvalue())
    # Not the size: a large one only takes long.
    data[24 + place % (len(data) - 24)] = value
    with suppress(ValueError):
        read_grey(bytes(data))


def png(size: tuple[int, int], rows: bytes) -> bytes:
    """A grey file of 8 bits, width and height as given, whatever its rows are."""
    head = struct.pack(">IIBBBBB", *size, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)))
    packed = b"".join(struct.pack(">I", len(d)) + kind + d + b"crc." for kind, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + packed


SQUARE = png((2, 2), b"\0\xff\xff" * 2)


@pytest.mark.parametrize(
    "mask",
    [
        *(RunLengths((2, 4), counts) for counts in ("", "P", "9", "T", "5" * 20, "o" * 1_000_000)),
        RunLengths((2_000_000, 2_000_000), "0"),
        RunLengths((-2, -4), "8"),
        MaskFile((2, 2), -1, 0, SQUARE),
        MaskFile((2, 2), 1, 1, SQUARE),
        MaskFile((2_000_000, 2_000_000), 0, 0, SQUARE),
        MaskFile((9, 9), 0, 0, png((60_000, 60_000), b"")),
        MaskFile((9, 9), 0, 0, png((2, 2), bytes(100_000_000))),
        MaskFile((9, 9), 0, 0, png((2, 2), b"\0")),
    ],
)
def test_a_mask_that_does_not_fit_is_a_value_error(mask: RunLengths | MaskFile) -> None:
    with pytest.raises(ValueError, match=r"."):
        _ = mask.pixels


def test_a_mask_is_read() -> None:
    assert RunLengths((2, 4), "242").pixels.tolist() == [[False, True, True, False]] * 2
    assert MaskFile((2, 3), 1, 0, SQUARE).pixels.tolist() == [[False, True, True]] * 2
    assert not MaskFile((2, 3), 5, 0, png((1, 1), b"\0\0")).pixels.any()


def test_a_prediction_is_read_into_types() -> None:
    prediction = _responses.prediction(response(200, ANSWER))
    assert (prediction.model, prediction.version, prediction.task) == ("yolov8n", "3", "detect")
    bus = Detection(Box(22.25, 231.5, 805.0, 756.75), 0.875, 5, "bus")
    assert prediction.images == (
        ImageResult(810, 1080, 6, (bus,)),
        ImageError("invalid_image", "the file is cut off"),
    )
    assert prediction.timing_ms.infer == 54.0
    with pytest.raises(ValueError, match="2 images"):
        _ = prediction.detections


def test_detections_is_the_short_way_to_a_single_image() -> None:
    prediction = _responses.prediction(response(200, ANSWER | {"images": ANSWER["images"][:1]}))
    assert prediction.image.width == 810
    assert [found.class_name for found in prediction.detections] == ["bus"]


def test_raw_tensors_keep_their_type_and_shape() -> None:
    tensor = {"name": "out", "datatype": "float16", "shape": [2, 3], "data": [0, 1, 2, 3, 4, 5]}
    image = {"width": 4, "height": 2, "orientation": 1, "tensors": [tensor]}
    result = _responses.prediction(response(200, ANSWER | {"images": [image]})).image
    assert result.detections == ()
    assert result.tensors[0].data.dtype == np.float16
    assert result.tensors[0].data.tolist() == [[0, 1, 2], [3, 4, 5]]


BOX = {"x1": 1.0, "y1": 2.0, "x2": 3.5, "y2": 4.0}
OBJECT = {"box": BOX, "score": 0.5, "class_id": 2, "class_name": "car"}
RUNS = {"size": [2, 4], "counts": "0"}


@pytest.mark.parametrize(
    "found",
    [
        {"detections": []},
        {"detections": [OBJECT, OBJECT | {"mask": RUNS}]},
        {"detections": [OBJECT | {"mask": {"size": [2, 4], "polygons": [[0.5, 1.0, 2.0, 1.0]]}}]},
        {"detections": [OBJECT | {"mask": {"size": [2, 4], "left": 1, "top": 0, "png": "aGk="}}]},
        {
            "detections": [
                OBJECT | {"keypoints": [{"name": "eye", "x": 1.0, "y": 2.0, "score": 1.0}]}
            ]
        },
        {
            "detections": [
                OBJECT
                | {"rotated": {"cx": 1.0, "cy": 1.0, "w": 2.0, "h": 1.0, "angle": 0.25}}
                | {"corners": [{"x": 0.0, "y": 1.5}] * 4}
            ]
        },
        {"classes": [{"class_id": 0, "class_name": "cat", "score": 0.75}]},
        {"semantic": {"classes": [], "png": "aGk="}},
        {
            "semantic": {
                "classes": [
                    {"class_id": 1, "class_name": "road", "pixels": 8, "share": 1.0, "mask": RUNS}
                ]
            }
        },
        {"saliency": {"share": 0.25}},
        {"depth": {"min": 1.0, "max": 2.0, "unit": None}},
        {
            "depth": {
                "min": 1.0,
                "max": 2.0,
                "unit": "m",
                "png": "aGk=",
                "scale": 1.5,
                "offset": 0.0,
            }
        },
        {"tensors": [{"name": "o", "datatype": "float32", "shape": [1, 2], "data": [0.5, 1.0]}]},
    ],
)
def test_a_result_is_written_as_it_was_read(found: dict[str, object]) -> None:
    image = {"width": 4, "height": 2, "orientation": 1} | found
    result = fovea_client.image_result(image)
    assert json.dumps(fovea_client.as_json(result)) == json.dumps(image)
    # Other servers may say of a part that it is not there.
    parts = {name: None for name in ("detections", "classes", "semantic", "depth")}
    again = fovea_client.as_json(fovea_client.image_result(parts | image | {"later": 1}))
    assert again == image


def test_an_error_of_an_image_is_written_as_it_was_read() -> None:
    error = {"error": {"code": "invalid_image", "message": "the file is cut off"}}
    assert fovea_client.as_json(fovea_client.image_result(error)) == error


@pytest.mark.parametrize("mask", [{"size": [2, 4]}, [1], "mask", 3, {"size": 2, "counts": "0"}])
def test_a_mask_of_another_form_is_an_unexpected_answer(mask: object) -> None:
    image = {"width": 4, "height": 2, "orientation": 1, "detections": [OBJECT | {"mask": mask}]}
    with pytest.raises(UnexpectedAnswer):
        _responses.prediction(response(200, ANSWER | {"images": [image]}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        json.dumps(ANSWER | {"timing_ms": {}}).encode(),
        json.dumps(ANSWER | {"images": [{"width": "wide"}]}).encode(),
        json.dumps(ANSWER | {"images": 3}).encode(),
        json.dumps(
            ANSWER
            | {
                "images": [
                    {"width": 1, "height": 1, "orientation": 1}
                    | {"tensors": [{"name": "", "datatype": "float33", "shape": [1], "data": [1]}]}
                ]
            }
        ).encode(),
    ],
)
def test_anything_else_is_an_unexpected_answer(body: bytes) -> None:
    with pytest.raises(UnexpectedAnswer):
        _responses.prediction(Response(200, headers={}, content=body))


def test_what_later_servers_add_is_passed_over() -> None:
    assert _responses.prediction(response(200, ANSWER | {"trace": [1]})).model == "yolov8n"


def test_an_error_carries_the_servers_code_and_message() -> None:
    answer = response(413, {"error": {"code": "image_too_large", "message": "send less"}})
    with pytest.raises(ServerError, match="send less") as caught:
        _responses.prediction(answer)
    assert (caught.value.status, caught.value.code) == (413, "image_too_large")
    assert caught.value.message == "send less"
    assert not isinstance(caught.value, QueueFull)


def test_a_full_queue_says_when_to_come_back() -> None:
    body = {"error": {"code": "queue_full", "message": "256 images are waiting"}}
    with pytest.raises(QueueFull) as caught:
        _responses.image(response(429, body, **{"retry-after": "7"}))
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "nan", "inf", ""])
def test_a_retry_after_that_is_no_count_of_seconds_is_none(value: str) -> None:
    with pytest.raises(QueueFull) as caught:
        _responses.raise_for_status(
            Response(429, headers={"retry-after": value}, content=b"slow down")
        )
    assert caught.value.retry_after_s is None


@pytest.mark.parametrize("status", [301, 404, 502])
def test_a_proxys_own_words_are_passed_on(status: int) -> None:
    with pytest.raises(ServerError, match="Bad Gateway") as caught:
        _responses.raise_for_status(Response(status, headers={}, content=b"<h1>Bad Gateway</h1>"))
    assert caught.value.code == f"http_{status}"


def test_an_image_must_be_an_image() -> None:
    assert (
        _responses.image(Response(200, headers={"content-type": "image/png"}, content=b"png"))
        == b"png"
    )
    with pytest.raises(UnexpectedAnswer):
        _responses.image(Response(200, headers={"content-type": "application/json"}, content=b"{}"))


def test_readiness_is_yes_no_or_an_error() -> None:
    assert _responses.ready(Response(200, headers={}, content=b""))
    assert not _responses.ready(Response(400, headers={}, content=b""))
    assert not _responses.ready(Response(503, headers={}, content=b""))
    with pytest.raises(ServerError):
        _responses.ready(Response(404, headers={}, content=b""))


def test_a_wait_honours_the_server_and_then_doubles() -> None:
    busy = QueueFull(429, "queue_full", "", retry_after_s=3.0)
    assert 3.0 <= (wait_s(busy, 5) or 0) <= 3.75
    lost = ConnectionFailed("nobody there")
    assert 0.1 <= (wait_s(lost, 0) or 0) <= 0.125
    assert 0.8 <= (wait_s(lost, 3) or 0) <= 1.0


def test_what_will_not_get_better_is_not_tried_again() -> None:
    assert wait_s(ServerError(422, "invalid_option", ""), 0) is None
    # A gateway's 504 may come after the server executed the request.
    assert wait_s(ServerError(504, "http_504", "", retry_after_s=1.0), 0) is None
    assert wait_s(UnexpectedAnswer(""), 0) is None
