"""Every kind of result of whole images, over every route: one value, whoever asks for it how."""

import base64
import csv
import json
import struct

import cv2
import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.built import build
from tests.e2e.results import AS_IT_IS, COLOUR, KINDS
from tests.e2e.test_v2_images import images
from tests.listed import check_listed
from tests.serving import start_server
from tritonclient.utils import InferenceServerException

from fovea_client import Client, as_json
from fovea_engines.build.plan import BuildPlan
from fovea_preprocess.image import decode_image
from fovea_server.http.v1.schemas import PredictAnswer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name, kind in KINDS.items():
        source = kind.write(folder / f"{name}.onnx")
        plan = {"preprocess": AS_IT_IS} | kind.given
        build(BuildPlan(source, name, folder / "r", "onnxruntime", **plan))
    return folder / "r"


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    running = start_server(repository, tmp_path_factory.mktemp("log"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def image():
    """A PNG file of one colour, 40 x 30."""
    pixels = np.full((30, 40, 3), COLOUR[::-1], np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


def test_json_and_the_client(server, image, name):
    kind = KINDS[name]
    answer = httpx.post(server.predict_url(name), content=image).json()
    PredictAnswer.model_validate(answer, strict=True)
    assert answer["task"] == kind.task
    with Client(server.url) as client:
        found = client.predict(name, image)
        assert client.model(name).task == kind.task
        both = client.predict(name, [image, image])
    kind.check(found.image)
    assert as_json(found.image) == answer["images"][0]
    assert [as_json(each) for each in both.images] == [answer["images"][0]] * 2
    assert any(kind.line in line for line in found.image.lines)
    assert kind.line in found._repr_html_()


def test_several_images_and_a_broken_one(server, image, name):
    answer = httpx.post(
        server.predict_url(name), files=[("file", image), ("file", b"no image"), ("file", image)]
    ).json()
    PredictAnswer.model_validate(answer, strict=True)
    first, broken, last = answer["images"]
    assert first == last
    assert broken["error"]["code"] == "invalid_image"


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_tensors(server, image, name, protocol):
    port = server.port if protocol is http_client else server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        found = client.infer(name, images(protocol, image, image, name="images"))
    check_listed(server, name, found)
    with Client(server.url) as client:
        result = client.predict(name, image).image
    for tensor, value in KINDS[name].tensors.items():
        have = found.as_numpy(tensor)
        assert len(have) == 2
        for row in have:
            want = value(result)
            if have.dtype == object:
                assert [each.decode() for each in np.atleast_1d(row).tolist()] == want
            else:
                np.testing.assert_allclose(row, want, rtol=1e-4, atol=1e-5)


def test_a_picture(server, image, name):
    plain = decode_image(image).pixels
    for kind in ("image/png", "image/jpeg", "image/webp"):
        answer = httpx.post(server.predict_url(name), content=image, headers={"accept": kind})
        assert answer.headers["content-type"] == kind
        assert (decode_image(answer.content).pixels[:10, :40] != plain[:10]).any()


@pytest.mark.parametrize("remote", [False, True], ids=["here", "server"])
def test_the_command(server, repository, image, name, remote, tmp_path, fovea):
    kind = KINDS[name]
    (tmp_path / "a.png").write_bytes(image)
    where = ["--url", server.url] if remote else ["--repository", str(repository)]
    code, shown, err = fovea("predict", name, "a.png", *where)
    assert code == 0, err
    assert kind.line in shown
    document = json.loads(fovea("predict", name, "a.png", "--json", *where)[1])
    [answer] = httpx.post(server.predict_url(name), content=image).json()["images"]
    assert document["images"] == [{"file": "a.png"} | answer]
    formats = "annotated,csv,jsonl"
    code, _, err = fovea("predict", name, "a.png", "--out", "out", "--format", formats, *where)
    assert code == 0, err
    header, *rows = csv.reader((tmp_path / "out" / "predictions.csv").read_text().splitlines())
    assert tuple(header) == ("file", *kind.columns)
    assert rows
    assert all(len(row) == len(header) for row in rows)
    [file] = (tmp_path / "out" / "annotated").iterdir()
    drawn = decode_image(file.read_bytes()).pixels
    assert (np.abs(drawn[:8].astype(int) - COLOUR) > 30).any()
    code, _, err = fovea("predict", name, "a.png", "--conf", 0.5, *where)
    assert (code, "conf has no effect" in err) == (2, True)


OF_OBJECTS = {"conf": 0.5, "iou": 0.5, "max_det": 3, "agnostic": True, "tile": 640}


def test_options_of_other_tasks_are_refused(server, image, name):
    task = KINDS[name].task
    for option, value in (OF_OBJECTS | {"classes": 0}).items():
        answer = httpx.post(server.predict_url(name), content=image, params={option: value})
        if option == "classes" and task == "attributes":
            assert answer.status_code == 200
            continue
        assert answer.status_code == 422, option
        said = f"{option} has no effect on model '{name}', whose task is {task}: leave it out"
        assert said in answer.json()["error"]["message"]
    usual = {"conf": 0.25, "iou": 0.7, "max_det": 300, "agnostic": False}
    assert httpx.post(server.predict_url(name), content=image, params=usual).status_code == 200


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_v2_refuses_them_too(server, image, name, protocol):
    port = server.port if protocol is http_client else server.grpc_port
    inputs = images(protocol, image, name="images")
    with (
        protocol.InferenceServerClient(f"127.0.0.1:{port}") as client,
        pytest.raises(InferenceServerException, match="conf has no effect"),
    ):
        client.infer(name, inputs, parameters={"conf": "0.5"})


def test_forms_of_a_vector(server, image):
    url = server.predict_url("embedding")

    def vector(**options):
        answer = httpx.post(url, content=image, params=options)
        assert answer.status_code == 200, answer.text
        return answer.json()["images"][0]["embedding"]

    usual, listed = vector(), vector(vector="list")
    assert [*struct.unpack("<16f", base64.b64decode(usual["data"]))] == listed["numbers"]
    raw = vector(vector="list", normalise="false")
    assert (usual["normalised"], raw["normalised"]) == (True, False)
    np.testing.assert_allclose(np.linalg.norm(raw["numbers"]), raw["norm"], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(listed["numbers"]), 1, rtol=1e-5)
    wrong = httpx.post(url, content=image, params={"vector": "hex"})
    assert (wrong.status_code, "base64, list" in wrong.text) == (422, True)


@pytest.mark.parametrize("name", ["embedding", "picture"])
def test_what_is_no_number_is_announced(server, name):
    black = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    answer = httpx.post(server.predict_url(name), content=black)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "not_finite")
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        inputs = images(http_client, black, name="images")
        with pytest.raises(InferenceServerException, match="NaN or infinite"):
            client.infer(name, inputs)
