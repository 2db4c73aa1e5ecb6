"""Roboflow's API: inference_sdk, unmodified and in both of its modes, finds what /v1 finds."""

import base64
import json
import subprocess

import cv2
import httpx
import numpy as np
import pytest
from tests.serving import start_server

pytestmark = pytest.mark.real

LIKE_ROBOFLOW = {"conf": 0.4, "iou": 0.3}


def call(model, image, mode="v1", **settings):
    """A call of `infer`, for the program."""
    return [mode, "infer", {"inference_input": image, "model_id": model}, settings]


def corners(prediction):
    x, y, w, h = (prediction[key] for key in ("x", "y", "width", "height"))
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]


def check_boxes(predictions, detections):
    assert len(predictions) == len(detections)
    for got, want in zip(predictions, detections, strict=True):
        assert (got["class"], got["class_id"]) == (want["class_name"], want["class_id"])
        assert got["confidence"] == want["score"]
        np.testing.assert_allclose(corners(got), list(want["box"].values()), atol=0.011)


def test_both_modes_find_what_v1_finds(run, server, images, found):
    names = ("yolov8n", "yolov8n-seg-320", "yolov8n-pose", "yolo11-obb")
    asked = [(name, image, mode) for name in names for image in images[:2] for mode in ("v0", "v1")]
    calls = [call(f"{name}/1", str(image), mode) for name, image, mode in asked]
    seen = 0
    for (name, image, _), answer in zip(
        asked, run("with_inference_sdk.py", [server.url, calls]), strict=True
    ):
        want = found(name, image.read_bytes(), **LIKE_ROBOFLOW)
        assert answer["image"] == {"width": want["width"], "height": want["height"]}
        assert answer["time"] > 0
        check_boxes(answer["predictions"], want["detections"])
        seen += len(want["detections"])
        for got, detection in zip(answer["predictions"], want["detections"], strict=True):
            if "keypoints" in detection:
                assert got["keypoints"] == [
                    {
                        "x": point["x"],
                        "y": point["y"],
                        "confidence": point["score"],
                        "class": point["name"],
                        "class_id": index,
                    }
                    for index, point in enumerate(detection["keypoints"])
                ]
    assert seen > 40


def test_points_are_the_largest_outline_of_the_mask(run, server, images, found):
    [answer] = run(
        "with_inference_sdk.py", [server.url, [call("yolov8n-seg-320/1", str(images[0]))]]
    )
    want = found("yolov8n-seg-320", images[0].read_bytes(), mask="polygon", **LIKE_ROBOFLOW)
    for got, detection in zip(answer["predictions"], want["detections"], strict=True):
        outlines = [
            np.array(each, np.float32).reshape(-1, 2) for each in detection["mask"]["polygons"]
        ]
        largest = max(outlines, key=cv2.contourArea)
        points = [[point["x"], point["y"]] for point in got["points"]]
        np.testing.assert_array_equal(points, largest)


def test_settings_of_the_client(run, server, images, found):
    image = str(images[0])
    calls = [
        call("yolov8n", image, confidence_threshold=0.9),
        call("yolov8n/1", image, class_filter=["bus"], max_detections=1),
        call("yolov8n-seg-320/1", image, response_mask_format="rle"),
        call("yolov8n-pose/1", image, keypoint_confidence_threshold=0.9),
        call("yolov8n/1", [image, str(images[1])], max_batch_size=2, confidence_threshold=0.5),
        call("yolov8n/1", image, "v0", confidence_threshold=0.5, iou_threshold=0.9),
        call("yolov8n/1", image, visualize_predictions=True),
        call("yolov8n/1", image, "v0", format="image"),
    ]
    sure, bus, masks, points, both, legacy, drawn, alone = run(
        "with_inference_sdk.py", [server.url, calls]
    )
    body = images[0].read_bytes()
    check_boxes(sure["predictions"], found("yolov8n", body, conf=0.9, iou=0.3)["detections"])
    assert [each["class"] for each in bus["predictions"]] == ["bus"]
    want = found("yolov8n-seg-320", body, **LIKE_ROBOFLOW)["detections"]
    assert [each["rle"] for each in masks["predictions"]] == [each["mask"] for each in want]
    scores = [p["confidence"] for each in points["predictions"] for p in each["keypoints"]]
    assert scores
    assert min(scores) >= 0.9
    for answer, path in zip(both, images, strict=False):
        want = found("yolov8n", path.read_bytes(), conf=0.5, iou=0.3)
        check_boxes(answer["predictions"], want["detections"])
    check_boxes(legacy["predictions"], found("yolov8n", body, conf=0.5, iou=0.9)["detections"])
    assert len(drawn["predictions"]) >= 4
    for answer in (drawn, alone):
        picture = np.frombuffer(base64.b64decode(answer["visualization"]), np.uint8)
        assert cv2.imdecode(picture, cv2.IMREAD_COLOR).shape == (1080, 810, 3)


def test_a_classifier(run, server, images, found):
    calls = [
        call("yolo11-cls/1", str(images[0]), confidence_threshold=0.0, mode=mode)
        for mode in ("v0", "v1")
    ]
    want = found("yolo11-cls", images[0].read_bytes(), top_k=1000)["classes"]
    for answer in run("with_inference_sdk.py", [server.url, calls]):
        assert (answer["top"], answer["confidence"]) == (want[0]["class_name"], want[0]["score"])
        got = [(each["class"], each["confidence"]) for each in answer["predictions"]]
        assert got == [(each["class_name"], each["score"]) for each in want]


def test_models_and_server(run, server):
    calls = [
        ["v1", "get_server_info", {}, {}],
        ["v1", "list_loaded_models", {}, {}],
        ["v1", "load_model", {"model_id": "yolov8n/1"}, {}],
        ["v1", "load_model", {"model_id": "nobody/1"}, {}],
        ["v1", "unload_model", {"model_id": "yolov8n/1"}, {}],
        ["v1", "unload_all_models", {}, {}],
    ]
    about, models, loaded, unknown, *refused = run("with_inference_sdk.py", [server.url, calls])
    assert about["name"] == "Fovea"
    tasks = {each["model_id"]: each["task_type"] for each in models["models"]}
    assert tasks == {
        "yolov8n/1": "object-detection",
        "yolov8n-seg-320/1": "instance-segmentation",
        "yolov8n-pose/1": "keypoint-detection",
        "yolo11-cls/1": "classification",
        "yolo11-obb/1": "object-detection",
    }
    assert loaded["models"][0]["input_height"] == 640
    assert unknown["status"] == 404
    assert "there is no model 'nobody'" in unknown["message"]
    assert all("--model-control-mode=explicit" in each["message"] for each in refused)


def test_models_are_loaded_and_unloaded_in_explicit_mode(run, api_repository, tmp_path):
    flags = ("--api=roboflow", "--model-control-mode=explicit", "--load-model=yolov8n")
    server = start_server(api_repository, tmp_path, flags)
    calls = [
        ["v1", "load_model", {"model_id": "yolo11-cls/1"}, {}],
        ["v1", "unload_model", {"model_id": "yolov8n/1"}, {}],
        ["v1", "unload_all_models", {}, {}],
    ]
    try:
        answers = run("with_inference_sdk.py", [server.url, calls])
    finally:
        server.stop()
    names = [sorted({each["model_id"] for each in answer["models"]}) for answer in answers]
    assert names == [["yolo11-cls/1", "yolov8n/1"], ["yolo11-cls/1"], []]


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "application/json", "text/plain"]
)
def test_the_legacy_route_takes_base64_as_curl_sends_it(server, images, found, kind):
    body = images[0].read_bytes()
    lines = subprocess.run(["base64", images[0]], capture_output=True, check=True).stdout
    url = server.url + "/yolov8n/1"
    asked = {"api_key": "any", "confidence": 50, "overlap": 70}
    answer = httpx.post(url, content=lines, params=asked, headers={"Content-Type": kind})
    check_boxes(
        answer.json()["predictions"], found("yolov8n", body, conf=0.5, iou=0.7)["detections"]
    )
    form = httpx.post(url, files={"file": body}, params=asked)
    assert len(form.json()["predictions"]) == len(answer.json()["predictions"])


def infer(server, **given):
    return httpx.post(server.url + "/infer/object_detection", content=json.dumps(given))


def test_errors_have_a_message(server, images):
    data = base64.b64encode(images[0].read_bytes()).decode()
    image = {"type": "base64", "value": data}
    for given, status, says in (
        ({"image": image}, 400, "no model name"),
        ({"model_id": "nobody/1", "image": image}, 404, "there is no model 'nobody'"),
        ({"model_id": "yolov8n/9", "image": image}, 404, "no version 9"),
        ({"model_id": "yolov8n/../1", "image": image}, 404, "NAME/VERSION"),
        ({"model_id": "yolov8n/1"}, 400, "image has an unknown form"),
        ({"model_id": "yolov8n/1", "image": []}, 400, "0 images"),
        ({"model_id": "yolov8n/1", "image": [image] * 65}, 400, "65 images"),
        ({"model_id": "yolov8n/1", "image": {"type": "numpy", "value": data}}, 400, "pickled"),
        ({"model_id": "yolov8n/1", "image": {"type": "base64", "value": "*"}}, 400, "not base64"),
        ({"model_id": "yolov8n/1", "image": image | {"value": data[:8000]}}, 400, "image"),
        ({"model_id": "yolov8n/1", "image": image, "confidence": "NaN"}, 422, "confidence is"),
        ({"model_id": "yolov8n/1", "image": image, "max_detections": 0}, 422, "max_detections"),
        ({"model_id": "yolov8n/1", "image": image, "max_detections": "1" * 5000}, 422, "from 1"),
        ({"model_id": "yolov8n/1", "image": image, "class_filter": ["bsu"]}, 422, "bus"),
    ):
        answer = infer(server, **given)
        assert answer.status_code == status, answer.text
        assert list(answer.json()) == ["message"]
        assert says in answer.json()["message"]
    assert (
        "JSON" in httpx.post(server.url + "/infer/classification", content=b"{").json()["message"]
    )
    assert httpx.post(server.url + "/nobody/1", content=b"x").status_code == 404
    assert httpx.post(server.url + "/yolov8n/latest", content=b"x").status_code == 404
