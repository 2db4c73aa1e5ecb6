"""Class names select what is answered wherever class ids do."""

import base64
import json
import os
import subprocess

import httpx
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.built import build
from tests.e2e.conftest import images
from tests.forked import forked_fovea
from tritonclient.utils import InferenceServerException

from fovea_client import Client, ServerError
from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.slow

# Digits under other names: two share one, one has a comma, two differ in case alone; one that text
# would take for an id, and one that would lose a blank.
LABELS = ("zero", "one", "3", "three, odd", "one", "four", "Four", "seven", "eight", " nine")
TABLE = [
    ("Four", {6}),
    ("Four,9", {6, 9}),
    ("Four, one", {1, 4, 6}),
    ("ONE", {1, 4}),
    ('"three, odd",Four', {3, 6}),
    ("3", {3}),
    ('"3"', {2}),
    ('3," nine"', {3, 9}),
]


@pytest.fixture(scope="module")
def repository(demo_model, tmp_path_factory):
    repository = tmp_path_factory.mktemp("names") / "repository"
    build(BuildPlan(demo_model, "digits", repository, "onnxruntime", labels=LABELS))
    return repository


def ids(answer: httpx.Response) -> set[int]:
    assert answer.status_code == 200, answer.text
    return {each["class_id"] for each in answer.json()["images"][0]["detections"]}


@pytest.mark.parametrize(("classes", "expected"), TABLE)
def test_names_as_text(server, scene, classes, expected):
    url = server.predict_url("digits")
    assert ids(httpx.post(url, content=scene, params={"classes": classes})) == expected
    with Client(server.url) as client:
        found = client.predict("digits", scene, classes=classes).detections
    assert {each.class_id for each in found} == expected


def test_names_in_lists(server, scene):
    url = server.predict_url("digits")
    assert ids(httpx.post(url, content=scene, params={"classes": ["Four", "9"]})) == {6, 9}
    files = {"file": ("scene.jpg", scene)}
    assert ids(httpx.post(url, files=files, data={"classes": ["Four,1", "3"]})) == {1, 3, 6}
    body = {"images": [{"data": base64.b64encode(scene).decode()}]}
    names = ["three, odd", "3", 9, 6]
    assert ids(httpx.post(url, json=body | {"classes": names})) == {2, 3, 6, 9}
    with Client(server.url) as client:
        found = client.predict("digits", scene, classes=names).detections
        assert {each.class_id for each in found} == {2, 3, 6, 9}
        with pytest.raises(ServerError, match="'seven'") as caught:
            client.predict("digits", scene, classes=["sevn"])
    assert (caught.value.status, caught.value.code) == (422, "invalid_option")


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_names_in_the_parameters_of_triton_clients(server, protocol, scene):
    name = httpx.get(f"{server.url}/v2/models/digits").json()["inputs"][0]["name"]
    sent = images(protocol, scene, name=name)
    port = server.port if protocol is http_client else server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer("digits", sent, parameters={"classes": "Four,9"})
        assert set(answer.as_numpy("class_ids")[0].tolist()) == {6, 9}
        with pytest.raises(InferenceServerException, match="'seven'"):
            client.infer("digits", sent, parameters={"classes": "sevn"})


@pytest.mark.parametrize("where", ["--url", "--repository"])
def test_names_on_the_command_line(server, repository, tmp_path, scene, where, fovea):
    (tmp_path / "scene.jpg").write_bytes(scene)
    source = {"--url": server.url, "--repository": repository}[where]
    words = ["predict", "digits", "scene.jpg", where, source, "--json", "--classes"]
    code, out, err = fovea(*words, 'Four,"3"')
    assert code == 0, err
    [image] = json.loads(out)["images"]
    assert {each["class_id"] for each in image["detections"]} == {2, 6}
    code, _, err = fovea(*words, "sevn")
    assert (code, "did you mean 'seven'?" in err) == (2, True)


@pytest.mark.parametrize(
    "classes", ["99", "Four,10", "sevn", "FOUR", "Four,", '"six', "x" * 10_000]
)
def test_a_name_that_cannot_be_used_is_refused(server, scene, classes):
    url = server.predict_url("digits")
    answer = httpx.post(url, content=scene, params={"classes": classes})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_option")
    assert len(answer.text) < 400


def test_a_terminal_without_the_letters_of_a_name(demo_model, tmp_path):
    """Such are C and POSIX, which containers and cron have."""
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join("零一二三四五六七八九"), "utf-8")
    for command in (
        ("build", demo_model, "--labels", labels, "--backend", "onnxruntime"),
        ("inspect", "digits"),
        ("predict", "digits", demo_model.with_name("seven.jpg")),
    ):
        done = subprocess.run(
            [*forked_fovea(), *map(str, command)],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr.decode()
    assert b"\\u4e00" in done.stdout
