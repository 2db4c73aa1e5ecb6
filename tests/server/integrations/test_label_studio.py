"""Label Studio's ML backend: its own SDK takes the predictions, and they are what /v1 finds."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pytest
from tests.run_lengths import decoded
from tests.server.integrations.labelling import PERSON, VEHICLE, config, label, post, predict
from tests.serving import start_server

pytestmark = pytest.mark.real


def pixels(value, size=(810, 1080)):
    """The corners of a rectangle in pixels."""
    x, y = value["x"] / 100 * size[0], value["y"] / 100 * size[1]
    w, h = value["width"] / 100 * size[0], value["height"] / 100 * size[1]
    return [x, y, x + w, y + h]


def test_it_connects_as_label_studio_does(server):
    for base in (f"{server.url}/label-studio/yolov8n", f"{server.url}/label-studio/yolov8n-pose"):
        assert httpx.get(f"{base}/health").json()["status"] == "UP"
        setup = {
            "project": "1.17",
            "schema": config("RectangleLabels", PERSON),
            "extra_params": None,
        }
        told = httpx.post(f"{base}/setup", json=setup).json()
        assert told == {"model_version": f"{base.rpartition('/')[2]}/1"}
        for method in ("GET", "POST"):
            assert httpx.request(method, f"{base}/versions").json()["versions"]
        event = {"action": "ANNOTATION_CREATED", "project": {"id": 1}}
        assert httpx.post(f"{base}/webhook", json=event).json()["status"] == "ok"
    # A new project has no controls yet, and connects all the same.
    assert post(server, "yolov8n", "setup", project="1.17", schema="<View/>").status_code == 200


def test_rectangles(run, server, inline, images, found):
    xml = config("RectangleLabels", PERSON, VEHICLE, model_score_threshold="0.4")
    [prediction] = predict(server, "yolov8n", xml, inline)
    want = found("yolov8n", images[0].read_bytes(), conf=0.4)["detections"]
    names = {"person": "Person", "bus": "Vehicle"}
    regions = prediction["result"]
    assert [each["value"]["rectanglelabels"] for each in regions] == [
        [names[each["class_name"]]] for each in want
    ]
    for region, each in zip(regions, want, strict=True):
        assert region["score"] == each["score"]
        assert (region["original_width"], region["original_height"]) == (810, 1080)
        np.testing.assert_allclose(pixels(region["value"]), list(each["box"].values()), atol=0.01)
    assert prediction["score"] == pytest.approx(np.mean([each["score"] for each in want]))
    [[wrong, _]] = run("with_label_studio_sdk.py", [[xml, prediction]])
    assert wrong == []


def test_brushes_and_polygons(run, server, inline, images, found):
    both = config("BrushLabels", PERSON, VEHICLE).replace(
        "</View>",
        f'<PolygonLabels name="p" toName="image">{PERSON}{VEHICLE}</PolygonLabels></View>',
    )
    [prediction] = predict(server, "yolov8n-seg-320", both, inline)
    [[wrong, masks]] = run("with_label_studio_sdk.py", [[both, prediction]])
    assert wrong == []
    image = images[0].read_bytes()
    want = found("yolov8n-seg-320", image)["detections"]
    assert len(masks) == len(want) >= 4
    for mask, each in zip(masks, want, strict=True):
        rows = np.unpackbits(np.frombuffer(base64.b64decode(mask), np.uint8))[: 810 * 1080]
        np.testing.assert_array_equal(rows.reshape(1080, 810), decoded(each["mask"]))
    outlines = [
        outline
        for each in found("yolov8n-seg-320", image, mask="polygon")["detections"]
        for outline in each["mask"]["polygons"]
    ]
    drawn = [each["value"] for each in prediction["result"] if each["type"] == "polygonlabels"]
    assert len(drawn) == len(outlines)
    for value, outline in zip(drawn, outlines, strict=True):
        points = np.array(value["points"]) / 100 * (810, 1080)
        np.testing.assert_allclose(points.ravel(), outline, atol=0.01)


def test_keypoints_belong_to_their_rectangles(run, server, inline, images, found):
    labels = label("nose") + label("Left_Eye")
    xml = config("KeyPointLabels", labels, model_score_threshold="0.5").replace(
        "</View>", f'<RectangleLabels name="r" toName="image">{PERSON}</RectangleLabels></View>'
    )
    [prediction] = predict(server, "yolov8n-pose", xml, inline)
    [[wrong, _]] = run("with_label_studio_sdk.py", [[xml, prediction]])
    assert wrong == []
    want = found("yolov8n-pose", images[0].read_bytes(), conf=0.25)["detections"]
    boxes = {r["id"]: r for r in prediction["result"] if r["type"] == "rectanglelabels"}
    assert len(boxes) == len(want)
    points = [r for r in prediction["result"] if r["type"] == "keypointlabels"]
    sure = [
        (at, point)
        for at, each in enumerate(want)
        for point in each["keypoints"]
        if point["name"] in ("nose", "left eye") and point["score"] >= 0.5
    ]
    assert len(points) == len(sure) > 0
    for region, (at, point) in zip(points, sure, strict=True):
        assert region["parentID"] == list(boxes)[at]
        names = {"nose": "nose", "left eye": "Left_Eye"}
        assert region["value"]["keypointlabels"] == [names[point["name"]]]
        place = region["value"]["x"] * 8.1, region["value"]["y"] * 10.8
        np.testing.assert_allclose(place, (point["x"], point["y"]), atol=0.01)


def test_choices(run, server, inline, images, found):
    classes = found("yolo11-cls", images[0].read_bytes(), top_k=3)["classes"]
    options = [f'<Choice value="{each["class_name"]}"/>' for each in classes[1:]]
    one = config("Choices", *options)
    several = config("Choices", *options, choice="multiple", model_score_threshold="0")
    predictions = [
        predict(server, "yolo11-cls", xml, inline)[0]
        for xml in (
            one.replace('toName="image"', 'toName="image" model_score_threshold="0"'),
            several,
        )
    ]
    checked = zip((one, several), predictions, strict=True)
    assert [wrong for wrong, _ in run("with_label_studio_sdk.py", list(checked))] == [[], []]
    chosen = [each["result"][0]["value"]["choices"] for each in predictions]
    assert [len(each["result"]) for each in predictions] == [1, 1]
    names = [each["class_name"] for each in classes[1:]]
    assert chosen[0] == names[:1]
    assert chosen[1] == names


def test_rotated_rectangles(run, server, inline, images, found):
    classes = httpx.get(server.url + "/v1/models/yolo11-obb").json()["labels"]
    xml = config("RectangleLabels", *map(label, classes), model_score_threshold="0.01")
    [prediction] = predict(server, "yolo11-obb", xml, inline)
    want = found("yolo11-obb", images[0].read_bytes(), conf=0.01)["detections"]
    assert len(prediction["result"]) == len(want) > 0
    for region, each in zip(prediction["result"], want, strict=True):
        value, first = region["value"], each["corners"][0]
        place = value["x"] * 8.1, value["y"] * 10.8
        np.testing.assert_allclose(place, (first["x"], first["y"]), atol=0.02)
        angle = np.degrees(each["rotated"]["angle"]) % 360
        assert (value["rotation"] - angle + 180) % 360 - 180 == pytest.approx(0, abs=0.01)
        assert value["width"] * 8.1 == pytest.approx(each["rotated"]["w"], abs=0.02)


def test_errors_say_what_to_change(server, inline):
    rectangles = config("RectangleLabels", PERSON)
    task = {"id": 1, "data": {"photo": inline}}
    for model, given, says in (
        ("yolov8n", {"tasks": [task]}, "no labelling configuration"),
        ("yolov8n", {"tasks": "x", "label_config": rectangles}, "list of tasks"),
        ("yolov8n", {"tasks": [{}] * 1001, "label_config": rectangles}, "1000"),
        ("yolov8n", {"tasks": [{"data": {}}], "label_config": rectangles}, "data.photo"),
        ("yolov8n", {"tasks": [task], "label_config": "<View>"}, "not XML"),
        (
            "yolov8n",
            {"tasks": [task], "label_config": config("BrushLabels", PERSON)},
            "BrushLabels",
        ),
        ("yolo11-cls", {"tasks": [task], "label_config": rectangles}, "Choices"),
        (
            "yolov8n",
            {"tasks": [task], "label_config": config("RectangleLabels", label("Wolf"))},
            "predicted_values",
        ),
        (
            "yolov8n",
            {"tasks": [task], "label_config": f'<!DOCTYPE a [<!ENTITY b "c">]>{rectangles}'},
            "DOCTYPE",
        ),
        (
            "yolov8n",
            {"tasks": [task], "label_config": " " * 1_000_001},
            "more than a million characters",
        ),
        ("yolov8n", {"tasks": [{"data": {"photo": "http://[x"}}], "label_config": rectangles}, "x"),
    ):
        answer = post(server, model, "predict", **given)
        assert answer.status_code == 400, answer.text
        assert says in answer.json()["error"]
    assert post(server, "nobody", "predict", tasks=[]).status_code == 404
    assert "yolov8n-pose" in httpx.post(server.url + "/predict", json={}).json()["error"]
    assert post(server, "yolov8n", "validate", config=rectangles).json() == {"status": "ok"}
    assert post(server, "yolov8n", "validate", config="<View/>").status_code == 400
    assert "does not train" in post(server, "yolov8n", "train", annotations=[]).json()["error"]


# Images of Label Studio's tasks: with its token from its own host, and with none from others.


TOKEN = "0123456789abcdef"


class Site(BaseHTTPRequestHandler):
    """Files as Label Studio has them: for those with the token, some of them elsewhere."""

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        if self.path.startswith("/tasks/7/presign/") or self.path == "/data/moved":
            self.send_response(302)
            self.send_header("Location", server.elsewhere)
            self.end_headers()
        elif "Authorization" in self.headers or server.elsewhere is None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.image)
        else:
            self.send_response(401)
            self.end_headers()

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site(images):
    """A Label Studio's files, and those of a cloud that it redirects to."""
    image = images[0].read_bytes()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Site) for _ in range(2)]
    studio, cloud = servers
    for server in servers:
        server.asked, server.image, server.elsewhere = [], image, None
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
    studio.elsewhere = f"{cloud.url}/signed"
    studio.cloud = cloud
    yield studio
    for server in servers:
        server.shutdown()
        server.server_close()


def test_files_of_label_studio_are_fetched_with_its_token(server, site):
    site.asked.clear()
    project = "5.17"
    setup = {"project": project, "schema": "<View/>", "hostname": site.url, "access_token": TOKEN}
    assert post(server, "yolov8n", "setup", **setup).status_code == 200
    xml = config("RectangleLabels", PERSON)
    addresses = (
        "/data/upload/5/bus.jpg",
        f"{site.url}/data/local-files/?d=bus.jpg",
        "s3://bucket/bus.jpg",
        "/data/moved",
        f"{site.cloud.url}/public.jpg",
        # Addresses of another host after the slash, which joining takes for whole ones.
        f"/{site.cloud.url}/public.jpg",
        f"/ {site.cloud.url.removeprefix('http:')}/public.jpg",
    )
    results = predict(server, "yolov8n", xml, *addresses, project=project)
    assert [len(each["result"]) for each in results[:6]] == [4] * 6
    asked = dict(site.asked)
    assert set(asked.values()) == {f"Token {TOKEN}"}
    assert "/data/upload/5/bus.jpg" in asked
    # The token is for Label Studio alone.
    assert {authorization for _, authorization in site.cloud.asked} == {None}


@pytest.mark.parametrize("hostname", ["http://[", "file:///etc", "nowhere"])
def test_what_is_no_address_is_no_label_studio(server, hostname):
    answer = post(server, "yolov8n", "setup", project="6", schema="<View/>", hostname=hostname)
    assert (answer.status_code, "the URL of the Label Studio server is" in answer.text) == (
        422,
        True,
    )


def test_a_bad_image_among_good_ones_fails_alone(server, inline):
    xml = config("RectangleLabels", PERSON)
    addresses = (inline, "data:image/jpeg;base64,aGVsbG8=", "/data/upload/1/bus.jpg", inline)
    results = predict(server, "yolov8n", xml, *addresses, project="nobody's")
    assert [bool(each["result"]) for each in results] == [True, False, False, True]
    assert "not an image" in results[1]["error"]
    assert "--label-studio-url" in results[2]["error"]


def test_the_operator_says_where_label_studio_is(api_repository, site, tmp_path):
    flags = (
        "--api=label-studio=yolov8n",
        "--allow-url",
        "--url-allow-host=127.0.0.1",
        f"--label-studio-url={site.url}",
        "--label-studio-token=a.b.c",
    )
    server = start_server(api_repository, tmp_path, flags)
    try:
        site.asked.clear()
        # Strangers cannot have the operator's token sent to them.
        setup = {"project": "1", "hostname": site.cloud.url, "access_token": "x"}
        assert httpx.post(server.url + "/setup", json=setup).status_code == 200
        xml = config("RectangleLabels", PERSON)
        tasks = [{"id": 1, "data": {"photo": "/data/upload/1/bus.jpg"}}]
        given = {"tasks": tasks, "project": "1", "label_config": xml}
        answer = httpx.post(server.url + "/predict", json=given, timeout=60)
        assert answer.json()["results"][0]["result"]
        assert site.asked == [("/data/upload/1/bus.jpg", "Bearer a.b.c")]
    finally:
        server.stop()
    # A request is logged after its answer.
    assert server.log.read_text().count("model='yolov8n' status=200") == 1
