"""Masks and keypoints over HTTP are those of the engine in process, in every form."""

import base64
import json

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.http as http_client
from tests.built import build
from tests.listed import check_listed
from tests.run_lengths import decoded
from tests.serving import start_server

from fovea_engines.build.plan import BuildPlan
from fovea_engines.engine import Engine
from fovea_engines.evaluation.samples import read_image

pytestmark = pytest.mark.real

SEGMENTERS = ["yolov8n-seg-320", "yolo11-seg-nometa", "yolo26-seg", "rfdetr-seg"]
WITH_KEYPOINTS = ["yolo11-pose", "yolo26-pose", "rfdetr-keypoints", "yunet-n-dynamic"]
TRAINED = "yolov8n-seg-320"


@pytest.fixture(scope="module")
def served(shared, tmp_path_factory):
    """A server with all of them, and what each finds on bus.jpg in process."""
    repository, image = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("image")
    (image / "bus.jpg").symlink_to(shared / "data" / "bus.jpg")
    pixels, found = read_image(image / "bus.jpg"), {}
    for name in (*SEGMENTERS, *WITH_KEYPOINTS):
        folder = shared / "models" / ("" if name == TRAINED else "heads")
        # OpenVINO cannot compile the end-to-end heads of YOLO26.
        size = (640, 640) if name.startswith("yunet") else None
        plan = BuildPlan(
            folder / f"{name}.onnx", name, repository, "onnxruntime", images=image, size=size
        )
        build(plan)
        with Engine.open(repository / name / "1") as engine:
            found[name] = engine.detect(pixels)
    server = start_server(repository, tmp_path_factory.mktemp("log"))
    yield server, (image / "bus.jpg").read_bytes(), found, repository
    assert server.stop() == 0


def asked(served, name, **options):
    server, image, *_ = served
    answer = httpx.post(server.predict_url(name), content=image, params=options, timeout=60)
    assert answer.status_code == 200, answer.text
    [found] = answer.json()["images"]
    return found["detections"]


@pytest.mark.parametrize("name", SEGMENTERS)
def test_masks_are_those_of_the_engine(served, name):
    objects, expected = asked(served, name), served[2][name].masks
    assert len(objects) == len(expected) > 0
    for index, each in enumerate(objects):
        assert each["mask"]["size"] == [1080, 810]
        assert (decoded(each["mask"]) == expected.bitmap(index)).all()


@pytest.mark.parametrize("name", ["000000000632.jpg", "000000001000.jpg", "000000004134.jpg"])
def test_twenty_masks_of_a_crowded_image_take_less_than_8_kb(served, shared, name):
    """Large ragged ones take more: the 20 best of the seven such images of coco64 4 to 12 KB."""
    url = f"{served[0].predict_url(TRAINED)}?conf=0.1&max_det=20"
    image = (shared / "data" / "coco64" / "val" / name).read_bytes()
    [found] = httpx.post(url, content=image, timeout=60).json()["images"]
    masks = [each["mask"] for each in found["detections"]]
    assert (len(masks), found["width"]) == (20, 640)
    assert len(json.dumps(masks, separators=(",", ":"))) < 8 * 1024


def test_every_form_is_the_same_mask(served):
    expected = served[2][TRAINED].masks
    outlined, files = (asked(served, TRAINED, mask=form) for form in ("polygon", "png"))
    for index, (polygons, file) in enumerate(zip(outlined, files, strict=True)):
        want = expected.bitmap(index)
        packed = np.frombuffer(base64.b64decode(file["mask"]["png"]), np.uint8)
        part = cv2.imdecode(packed, cv2.IMREAD_GRAYSCALE)
        left, top = file["mask"]["left"], file["mask"]["top"]
        pixels = np.zeros_like(want)
        pixels[top : top + part.shape[0], left : left + part.shape[1]] = part > 0
        assert (pixels == want).all()
        drawn = np.zeros_like(want)
        corners = [np.array(each).reshape(-1, 2) - 0.5 for each in polygons["mask"]["polygons"]]
        cv2.fillPoly(drawn, [each.astype(np.int32) for each in corners], 1)
        # What a polygon lacks are holes, and parts of one or two pixels.
        assert (drawn & want).sum() > 0.97 * (drawn | want).sum()
    without = asked(served, TRAINED, mask="none")
    assert [each["box"] for each in without] == [each["box"] for each in files]
    assert not any(each.get("mask") for each in without)


def test_an_unknown_form_is_refused(served):
    server, image, *_ = served
    url = server.predict_url(TRAINED)
    answer = httpx.post(url, content=image, params={"mask": "bitmap"}, timeout=60)
    assert answer.status_code in (400, 422)
    assert "rle" in answer.text


@pytest.mark.parametrize("name", WITH_KEYPOINTS)
def test_keypoints_are_those_of_the_engine(served, name):
    objects, expected = asked(served, name), served[2][name].keypoints
    assert len(objects) == len(expected) > 0
    for each, want in zip(objects, expected, strict=True):
        rows = [[point["x"], point["y"], point["score"]] for point in each["keypoints"]]
        assert np.abs(np.array(rows) - want).max() < 0.01
        nose = each["keypoints"][2 if len(rows) == 5 else 0]
        assert nose["name"] == "nose"


@pytest.mark.parametrize("name", [TRAINED, "yunet-n-dynamic"])
def test_they_are_drawn(served, name):
    server, image, found, _ = served
    answer = httpx.post(
        server.predict_url(name), content=image, headers={"Accept": "image/png"}, timeout=60
    )
    drawn = cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_COLOR)
    plain = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    changed = (drawn != plain).any(axis=2)
    if found[name].masks is not None:
        mask = found[name].masks.bitmap(0).astype(bool)
        assert changed[mask].mean() > 0.9
    else:
        for x, y in found[name].keypoints[0, :, :2].round().astype(int):
            assert changed[y, x]


@pytest.mark.parametrize("name", [TRAINED, "yolo11-pose"])
def test_v2_has_them_as_tensors(served, name):
    server, image, found, _ = served
    encoded = np.empty(1, object)
    encoded[0] = image
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        tensor = http_client.InferInput(
            client.get_model_metadata(name)["inputs"][0]["name"], [1], "BYTES"
        )
        tensor.set_data_from_numpy(encoded)
        answer = client.infer(name, [tensor])
    check_listed(server, name, answer)
    if found[name].masks is not None:
        masks = [json.loads(each) for each in answer.as_numpy("masks")[0]]
        for index, mask in enumerate(masks):
            assert (decoded(mask) == found[name].masks.bitmap(index)).all()
    else:
        points = answer.as_numpy("keypoints")
        assert points.shape == (1, *found[name].keypoints.shape)
        np.testing.assert_allclose(points[0], found[name].keypoints, atol=0.01)


def test_masks_are_measured_through_the_server_as_in_process(served, shared, fovea, tmp_path):
    coco64 = shared / "data" / "coco64"
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    for labels in sorted((coco64 / "labels-seg").glob("*.txt"))[:4]:
        (tmp_path / "labels" / labels.name).symlink_to(labels)
        image = f"{labels.stem}.jpg"
        (tmp_path / "images" / image).symlink_to(coco64 / "val" / image)
    remote, local = (
        fovea("eval", TRAINED, "--data", tmp_path, "--json", *source)
        for source in (("--url", served[0].url), ("--repository", served[3]))
    )
    assert (remote[0], local[0]) == (0, 0), (remote[2], local[2])
    one, other = json.loads(remote[1]), json.loads(local[1])
    assert one["overlap"] == other["overlap"] == "mask IoU"
    for figure in ("map50_95", "map50", "box_map50_95", "box_map50"):
        assert other[figure] > 0.1
        assert one[figure] == pytest.approx(other[figure], abs=5e-3)
    _, table, _ = fovea("eval", TRAINED, "--data", tmp_path, "--url", served[0].url)
    assert "mask mAP50-95" in table
    assert "box mAP50-95" in table
    load = ("--url", served[0].url, "--clients", 2, "--warmup", 0, "--seconds", 0.2)
    code, out, err = fovea("bench", TRAINED, "--data", tmp_path, *load, "--json")
    assert code == 0, err
    [level] = json.loads(out)["levels"]
    assert level["accuracy"] == {name: one[name] for name in level["accuracy"]}
