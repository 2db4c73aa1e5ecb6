"""DeepStack's API: Frigate's plugin and Home Assistant's client find what /v1 finds."""

import io
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.server.integrations.frigate_plugin import load

pytestmark = pytest.mark.real

CORNERS = ("x_min", "y_min", "x_max", "y_max")


def detect(server, body, path="detection", **fields):
    url = f"{server.url}/v1/vision/{path}"
    return httpx.post(url, files={"image": body}, data=fields, timeout=60)


def expected(found, model, body, **options):
    """The answer of /v1, as DeepStack writes it."""
    return [
        {
            "label": each["class_name"],
            "confidence": each["score"],
            **dict(zip(CORNERS, map(round, each["box"].values()), strict=True)),
        }
        for each in found(model, body, **options)["detections"]
    ]


@pytest.fixture
def frigate(frigate_plugins):
    """Frigate's plugin."""
    return load(frigate_plugins / "deepstack.py")


def test_frigate_gets_the_boxes_of_v1(frigate, server, images, found):
    labels = {0: "person", 1: "bicycle", 2: "car", 5: "bus", 56: "chair", 62: "tv"}
    plugin = frigate.DeepStack(
        frigate.DeepstackDetectorConfig(
            type="deepstack",
            api_url=f"{server.url}/v1/vision/detection",
            api_timeout=60,
            model=SimpleNamespace(merged_labelmap=labels),
        )
    )
    seen = 0
    for path in images:
        frame = np.asarray(Image.open(path).convert("RGB").resize((640, 480)))
        rows = plugin.detect_raw(frame[None])
        sent = io.BytesIO()
        Image.fromarray(frame).save(sent, format="JPEG")
        want = np.zeros((20, 6), np.float32)
        for index, each in enumerate(expected(found, "yolov8n", sent.getvalue(), conf=0.4)):
            number = plugin.get_label_index(each["label"])
            if number < 0:
                break  # as the plugin does
            x1, y1, x2, y2 = (each[corner] for corner in CORNERS)
            want[index] = number, each["confidence"], y1 / 480, x1 / 640, y2 / 480, x2 / 640
            seen += 1
        np.testing.assert_allclose(rows, want, rtol=1e-6)
    assert seen >= 5


def test_home_assistants_client_gets_the_boxes_of_v1(run, server, images, found):
    models = ["", "yolov8n-pose", "nobody"]
    default, pose, unknown = run("with_deepstack.py", [server.port, str(images[0]), models])
    body = images[0].read_bytes()
    # The client asks for 0.45.
    assert default == expected(found, "yolov8n", body, conf=0.45)
    assert pose == expected(found, "yolov8n-pose", body, conf=0.45)
    assert len(default) >= 4
    assert "404" in unknown


def test_the_fields_that_are_documented(server, images):
    answer = detect(server, images[0].read_bytes(), min_confidence="0.9").json()
    assert (answer["success"], answer["code"], answer["command"]) == (True, 200, "detect")
    assert answer["count"] == len(answer["predictions"]) == 2
    assert answer["message"] == "Found 2 objects"
    assert 0 < answer["inferenceMs"] <= answer["processMs"] <= answer["analysisRoundTripMs"]
    assert all(each["confidence"] >= 0.9 for each in answer["predictions"])


def test_the_list_of_models_and_the_ping(server):
    boxes = ["yolo11-obb", "yolov8n", "yolov8n-pose", "yolov8n-seg-320"]
    for method in ("GET", "POST"):
        answer = httpx.request(method, server.url + "/v1/vision/custom/list").json()
        assert (answer["success"], answer["models"]) == (True, boxes)
    assert httpx.get(server.url + "/v1/status/ping").json()["success"] is True


def test_errors_have_deepstacks_form(server, images):
    image = images[0].read_bytes()
    for path, body, fields, status, says in (
        ("custom/nobody", image, {}, 404, "there is no model 'nobody'"),
        ("custom/yolo11-cls", image, {}, 400, "the task classify"),
        ("detection", image[:5000], {}, 400, "image"),
        ("detection", b"no image", {}, 400, "not an image"),
        ("detection", image, {"min_confidence": "nan"}, 422, "min_confidence is 'nan'"),
        ("detection", image, {"min_confidence": "40"}, 422, "from 0 to 1"),
    ):
        answer = detect(server, body, path, **fields)
        assert answer.status_code == status, answer.text
        told = answer.json()
        assert (told["success"], told["code"]) == (False, status)
        assert says in told["error"]
        assert "predictions" not in told
    for route in ("face", "face/recognize", "scene", "alpr"):
        answer = detect(server, image, route)
        assert (answer.status_code, answer.json()["success"]) == (404, False)
        assert f"/v1/vision/{route}: use /v1/vision/detection" in answer.json()["error"]
    bare = httpx.post(server.url + "/v1/vision/detection", content=image)
    assert "multipart" in bare.json()["error"]
    two = [("image", image), ("image2", image)]
    answer = httpx.post(server.url + "/v1/vision/detection", files=two)
    assert "one image" in answer.json()["error"]
