"""Requests to predict: every wrapping, option and header, by both ways through the server.

The quick route and FastAPI's give the same answers, bytes and all. `Content-Encoding: identity`
says nothing, and sends a request to FastAPI.
"""

import base64
import gzip
import io
import json
import re
import zlib

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError
from tests.conftest import DEMO

from fovea_preprocess.image import decode_image
from fovea_server.http.v1.schemas import ErrorAnswer, PredictAnswer

pytestmark = pytest.mark.slow

MODEL = "/v1/models/digits"
PREDICT = f"{MODEL}/predict"
TIMING = re.compile(rb'"timing_ms":\{[^}]*\}')
CURL = {"Content-Type": "application/x-www-form-urlencoded"}
FORM = {"Content-Type": "multipart/form-data"}
PLAIN, DRAWN = "application/json", "image/jpeg"
# Path behind /v1/models/, further headers, and the status or type of the response.
ASKED = [
    *((f"digits/predict{query}", {}, 200) for query in (
        *("", "?", "?conf=0.9", "?conf=.5&iou=0.1", "?classes=1", "?classes=1&classes=2&max_det=2"),
        *("?classes=%221%22,2", "?cl%61sses=%31,+2", "?max_det=1&agnostic=true"),
        "?agnostic=1&conf=0.001",
    )),
    *((f"digits/predict?{query}", {}, "invalid_option") for query in (
        *("conf=0.1&conf=0.2", "conf=", "conf=2", "conf=high", "conf=nan", "classes=sofa"),
        *("classes=99", "max_det=0", "agnostic=perhaps", "speed=9", "%ff=%fe"),
    )),
    *((f"{path}/predict", {}, 200) for path in (
        *("digits/versions/1", "dig%69ts", "digits/versions/01", "digits%2Fversions%2F1"),
    )),
    *((f"{path}/predict", {}, "not_found") for path in (
        *(f"digits/versions/{version}" for version in ("9", "0", "-1", "x", "9" * 20)),
        *("nobody", "nobody/versions/1", "..%2F..%2Fetc", "%00%ff", "digits/"),
    )),
    *(("digits/predict", {"X-Request-Timeout-Ms": ms}, 200) for ms in ("30000", "3e4")),
    ("digits/predict", {"X-Request-Timeout-Ms": "0.01"}, "deadline_exceeded"),
    *(
        ("digits/predict", {"X-Request-Timeout-Ms": ms}, "invalid_option")
        for ms in ("0", "never", "nan")
    ),
    *(("digits/predict", {"Content-Type": kind}, 200) for kind in (
        *("image/png", "text/plain; charset=utf-8", CURL["Content-Type"]),
    )),
    *(("digits/predict", {"Content-Type": kind}, "invalid_request") for kind in (
        *("application/JSON", FORM["Content-Type"]),
    )),
    *(("digits/predict", {"Accept": kind}, PLAIN) for kind in (
        *("*/*", "application/json", "text/html", "image/jpeg;q=0, application/json"),
        *("image/jpeg;q=0.5, application/json", "image/jpeg;q=x"),
    )),
    *(("digits/predict", {"Accept": kind}, DRAWN) for kind in ("image/*", "image/jpeg")),
    *(("digits/predict", {"Accept": kind}, "image/png") for kind in (
        *("IMAGE/PNG", "application/json;q=0.1, image/png", "image/jpeg;q=0.5, image/png"),
    )),
    *(("digits/predict", {name: value}, 200) for name, value in (
        *(("Connection", "close"), ("Expect", "nothing")),
    )),
]  # fmt: skip


def same(ask, path, method="POST", headers=(), **body):
    """The answer to a request, which is the same both ways."""
    told = []
    for way in ([], [("Content-Encoding", "identity")]):
        given = [*dict(headers).items(), *way, ("X-Request-Id", "mine")]
        answer = ask(method, path, headers=given, **body)
        dropped = {"content-length"} if TIMING.search(answer.content) else set()
        kept = sorted(each for each in answer.headers.multi_items() if each[0] not in dropped)
        told.append((answer.status_code, kept, TIMING.sub(b"", answer.content)))
    assert told[0] == told[1]
    return answer


def refusal(answer) -> str:
    return ErrorAnswer.model_validate(answer.json(), strict=True).error.code


def names(answer, index=0) -> list[str]:
    return sorted(d["class_name"] for d in answer.json()["images"][index]["detections"])


@pytest.mark.parametrize(("path", "headers", "expected"), ASKED)
def test_addresses_options_and_headers(ask, scene, path, headers, expected):
    answer = same(ask, f"/v1/models/{path}", headers=headers, content=scene)
    if expected == 200:
        PredictAnswer.model_validate(answer.json(), strict=True)
    elif "/" in str(expected):
        assert (answer.status_code, answer.headers["content-type"]) == (200, expected)
    else:
        assert refusal(answer) == expected


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_other_methods(ask, scene, method):
    assert same(ask, PREDICT, method, content=scene).status_code == 405


def test_two_headers_of_one_name(ask, scene):
    twice = [("Accept", "application/json"), ("Accept", "image/png")]
    for way in ([], [("Content-Encoding", "identity")]):
        answer = ask("POST", PREDICT, content=scene, headers=[*twice, *way])
        assert answer.headers["content-type"] == PLAIN


def test_damaged_bodies_and_the_advice_for_those_that_curl_damages(ask, scene):
    hint = "(with curl: --data-binary, not -d)"
    without_line_ends = scene.replace(b"\r", b"").replace(b"\n", b"")
    half = scene[: len(scene) // 2]
    for body in (b"", b"text", half, scene[:-9], without_line_ends, b"\x89PNG\r\n\x1a\n"):
        for headers in ({}, CURL):
            answer = same(ask, PREDICT, headers=headers, content=body)
            assert refusal(answer) == ("invalid_image" if body else "invalid_request")
            if body.startswith(scene[:2]):
                hinted = headers == CURL and body == without_line_ends
                assert (hint in answer.text) == hinted
    document = json.dumps({"images": [{"data": base64.b64encode(scene).decode()}]}).encode()
    for headers in ({}, CURL, {"Accept": DRAWN}):
        answer = same(ask, PREDICT, headers=headers, content=document)
        assert "Content-Type: application/json" in answer.json()["error"]["message"]
    inside = {"images": [{"data": base64.b64encode(b"{}").decode()}]}
    assert "Content-Type" not in ask("POST", PREDICT, json=inside).text


def test_every_wrapping_has_the_same_digits(ask, scene):
    truth = json.loads((DEMO / "scenes.json").read_text())["scene-1.jpg"]
    expected = sorted(each["class_name"] for each in truth)
    document = {"images": [{"data": base64.b64encode(scene).decode()}]}
    form = {"file": ("scene.jpg", scene)}
    for answer in (
        ask("POST", PREDICT, content=scene),
        ask("POST", PREDICT, files=form),
        ask("POST", f"{PREDICT}/form", files=form),
        ask("POST", PREDICT, json=document),
        # curl calls any body a form of its own kind.
        ask("POST", f"{PREDICT}/json", content=json.dumps(document), headers=CURL),
        ask("POST", PREDICT, content=gzip.compress(scene), headers={"Content-Encoding": "gzip"}),
        ask("POST", PREDICT, content=zlib.compress(scene), headers={"Content-Encoding": "deflate"}),
    ):
        assert names(answer) == expected
    for encoding in ("gzip", "br"):
        refused = ask("POST", PREDICT, content=scene, headers={"Content-Encoding": encoding})
        assert refusal(refused) == "invalid_request"
    refused = ask("POST", f"{PREDICT}/form", content=scene, headers={"content-type": DRAWN})
    assert refusal(refused) == "invalid_request"
    one = ask("POST", f"{PREDICT}/form", files=form, data={"max_det": "1"})
    assert len(names(one)) == 1


def test_many_images_answer_in_order_and_a_bad_one_fails_alone(ask, scene, second_scene):
    files = [("f", scene), ("f", scene[:5000]), ("f", second_scene), ("f", b"text")]
    answer = ask("POST", PREDICT, files=files)
    PredictAnswer.model_validate(answer.json(), strict=True)
    codes = [image.get("error", {}).get("code") for image in answer.json()["images"]]
    assert (answer.status_code, codes) == (200, [None, "invalid_image"] * 2)
    assert names(answer, 0) == names(ask("POST", PREDICT, content=scene))
    assert names(answer, 2) == names(ask("POST", PREDICT, content=second_scene))


def test_options_change_the_answer(ask, scene):
    def found(**options):
        answer = ask("POST", PREDICT, content=scene, params=options).json()
        return [(d["class_id"], d["score"]) for d in answer["images"][0]["detections"]]

    everything = found()
    assert found(max_det=2) == everything[:2]
    one = everything[0][0]
    assert {c for c, _ in found(classes=one)} == {one}
    assert {c for c, _ in found(classes=[one, everything[1][0]])} == {one, everything[1][0]}
    assert len(found(conf=0.001)) > len(everything)
    assert all(score >= 0.9 for _, score in found(conf=0.9))


# Undoing the orientation gives the upright image back.
UNDO = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize(("orientation", "undo"), UNDO.items())
def test_boxes_are_in_the_upright_frame_whatever_the_orientation(ask, scene, orientation, undo):
    upright = Image.open(io.BytesIO(scene))
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    stored = upright if undo is None else upright.transpose(undo)
    stored.save(file, "PNG", exif=exif)
    [image] = ask("POST", PREDICT, content=file.getvalue()).json()["images"]
    [expected] = ask("POST", PREDICT, content=scene).json()["images"]
    assert image["orientation"] == orientation
    assert (image["width"], image["height"]) == upright.size
    for got, want in zip(image["detections"], expected["detections"], strict=True):
        assert got["class_name"] == want["class_name"]
        assert np.allclose(list(got["box"].values()), list(want["box"].values()), atol=1)


@pytest.mark.parametrize("kind", [DRAWN, "image/png"])
def test_an_annotated_image_on_request(ask, scene, kind):
    answer = ask("POST", PREDICT, content=scene, headers={"Accept": kind})
    assert (
        answer.content
        == ask("POST", f"{MODEL}/annotate", content=scene, headers={"Accept": kind}).content
    )
    drawn, plain = decode_image(answer.content).pixels, decode_image(scene).pixels
    assert drawn.shape == plain.shape
    changed = np.abs(drawn.astype(int) - plain).max(axis=2) > 60
    assert 0.001 < changed.mean() < 0.3, "boxes and labels, not another image"


def test_an_image_at_a_wrong_address_is_told_the_right_one(ask, scene):
    for path in ("/health", "/predict/digits", "/v1/nowhere"):
        assert refusal(ask("POST", path, content=scene)) == "not_found"
    for path in (MODEL, f"{MODEL}/versions/1"):
        refused = ask("POST", path, content=scene)
        assert refusal(refused) == "method_not_allowed"
        assert f"POST {path}/predict" in refused.json()["error"]["message"]
    refused = ask("POST", PREDICT, json={"images": [{"url": "http://1.1.1.1/a"}]})
    assert refusal(refused) == "fetch_refused"


@pytest.mark.parametrize(
    "change",
    [
        {"orientation": None},
        {"detections": None},
        {"error": None},
        {"later": 1},
        {"detections": [{"keypoints": None}]},
        {"detections": [{"later": 1}]},
    ],
)
def test_the_schemas_take_neither_null_nor_other_fields(ask, scene, change):
    answer = ask("POST", PREDICT, content=scene).json()
    [image] = answer["images"]
    found = image["detections"][0]
    rows = change.get("detections")
    image |= change if not rows else {"detections": [found | rows[0]]}
    with pytest.raises(ValidationError):
        PredictAnswer.model_validate(answer, strict=True)
