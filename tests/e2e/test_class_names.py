"""Class names select detections wherever class ids do."""

import base64
import json
import os
import subprocess

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.built import build
from tests.forked import forked_fovea
from tests.serving import start_server
from tritonclient.utils import InferenceServerException

from fovea_client import Client, ServerError
from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.slow

# Digits under other names: two share one, one has a comma, two differ in case alone.
LABELS = ("zero", "one", "one", "three, odd", "Four", "four", "six", "seven", "eight", "nine")
# Names that text would take for an id, or would lose a blank.
ODD = (*LABELS[:6], "3", "seven", "eight", " nine")


@pytest.fixture(scope="module")
def repository(demo_model, tmp_path_factory):
    repository = tmp_path_factory.mktemp("names") / "repository"
    for name, labels in (("digits", LABELS), ("odd", ODD)):
        build(BuildPlan(demo_model, name, repository, "onnxruntime", labels=labels))
    return repository


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    server = start_server(repository, tmp_path_factory.mktemp("log"))
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_the_letters_of_a_name(demo_model, tmp_path, encoding):
    """Such are C and POSIX, which containers and cron have, and terminals of old systems."""
    labels = tmp_path / "labels.txt"
    labels.write_text("零\n一\n二\n三\n四\n五\n六\n七\n八\n九\n", "utf-8")
    image = demo_model.with_name("seven.jpg")
    for command in (
        ("build", demo_model, "--labels", labels, "--backend", "onnxruntime"),
        ("inspect", "digits"),
        ("predict", "digits", image),
    ):
        done = subprocess.run(
            [*forked_fovea(), *map(str, command)],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr.decode()
    assert b"\\u4e00" in done.stdout


@pytest.fixture
def url(server) -> str:
    return server.predict_url("digits")


def ids(answer: httpx.Response) -> set[int]:
    assert answer.status_code == 200, answer.text
    return {d["class_id"] for d in answer.json()["images"][0]["detections"]}


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ("six", {6}),
        ("six,9", {6, 9}),
        ("six, nine", {6, 9}),
        ("one", {1, 2}),
        ("NINE", {9}),
        ("Four", {4}),
        ('"three, odd",six', {3, 6}),
        (["six", "9"], {6, 9}),
    ],
)
def test_names_in_the_query(url, scene, classes, expected):
    assert ids(httpx.post(url, content=scene, params={"classes": classes})) == expected


def test_names_in_a_form(url, scene):
    files = {"file": ("scene.jpg", scene)}
    assert ids(httpx.post(url, files=files, data={"classes": ["six,1", "nine"]})) == {1, 6, 9}


def test_names_in_json(url, scene):
    images = [{"data": base64.b64encode(scene).decode()}]
    body = {"images": images, "classes": ["three, odd", "six", 9, 1]}
    assert ids(httpx.post(url, json=body)) == {1, 3, 6, 9}
    told = httpx.post(url, json=body | {"classes": ["1"]}).json()["error"]["message"]
    assert told.endswith("no class '1': an id is given without quotes")


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_names_in_the_parameters_of_triton_clients(server, protocol, scene):
    name = httpx.get(f"{server.url}/v2/models/digits").json()["inputs"][0]["name"]
    tensor = protocol.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([scene], dtype=object))
    port = server.port if protocol is http_client else server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer("digits", [tensor], parameters={"classes": "six,9"})
        assert set(answer.as_numpy("class_ids")[0].tolist()) == {6, 9}
        with pytest.raises(InferenceServerException, match="did you mean 'six'"):
            client.infer("digits", [tensor], parameters={"classes": "sixx"})


def test_names_in_the_client(server, scene):
    with Client(server.url) as client:
        for classes in (["three, odd", 6], 'six,"three, odd"'):
            found = client.predict("digits", scene, classes=classes).detections
            assert {each.class_id for each in found} == {3, 6}
        with pytest.raises(ServerError, match="did you mean 'nine'") as caught:
            client.predict("digits", scene, classes=["nin"])
    assert caught.value.status == 422


@pytest.mark.parametrize("where", ["--url", "--repository"])
def test_names_on_the_command_line(server, repository, tmp_path, scene, where):
    (tmp_path / "scene.jpg").write_bytes(scene)
    source = {"--url": server.url, "--repository": str(repository)}[where]

    def fovea_predict(classes: str) -> subprocess.CompletedProcess[str]:
        command = [*forked_fovea(), "predict", "digits"]
        arguments = [str(tmp_path / "scene.jpg"), where, source, "--classes", classes]
        return subprocess.run([*command, *arguments], capture_output=True, text=True)

    done = fovea_predict("six")
    assert done.returncode == 0, done.stderr
    assert "six" in done.stdout
    assert "nine" not in done.stdout
    done = fovea_predict("sixx")
    assert done.returncode == 2
    assert "model 'digits' has no class 'sixx'; did you mean 'six'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_in_quotes_is_no_id(server, repository, tmp_path, scene):
    url = server.predict_url("odd")
    for text, expected in (("3", {3}), ('"3"', {6}), ('3," nine"', {3, 9})):
        assert ids(httpx.post(url, content=scene, params={"classes": text})) == expected
    body = {"images": [{"data": base64.b64encode(scene).decode()}]}
    assert ids(httpx.post(url, json=body | {"classes": ["3", 1]})) == {1, 6}
    told = httpx.post(url, content=scene, params={"classes": "nine"}).json()["error"]["message"]
    assert "did you mean ' nine' (in text: in double quotes)?" in told
    with Client(server.url) as client:
        found = client.predict("odd", scene, classes=["3", 1, " nine"]).detections
    assert {each.class_id for each in found} == {1, 6, 9}
    (tmp_path / "scene.jpg").write_bytes(scene)
    for where in (("--url", server.url), ("--repository", str(repository))):
        command = [*forked_fovea(), "predict", "odd", *where]
        arguments = [str(tmp_path / "scene.jpg"), "--json", "--classes", '"3"']
        document = json.loads(subprocess.check_output([*command, *arguments]))
        assert {each["class_id"] for each in document["images"][0]["detections"]} == {6}


@pytest.mark.parametrize(
    ("classes", "status", "said"),
    [
        ("99", 422, "model 'digits' has no class 99; its class ids are 0 to 9"),
        ("six,10", 422, "has no class 10;"),
        ("sevn", 422, "has no class 'sevn'; did you mean 'seven'?"),
        ("zer", 422, "has no class 'zer'; did you mean 'zero'?"),
        ("FOUR", 422, "it has 'Four' or 'four'"),
        ("xylophone", 422, "its classes are zero, one"),
        ("six,", 422, "class names or ids"),
        ('"six', 422, "class names or ids"),
        ("x" * 10_000, 422, "no class 'xxxx"),
    ],
)
def test_a_name_that_cannot_be_used_is_told(url, scene, classes, status, said):
    answer = httpx.post(url, content=scene, params={"classes": classes})
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]
    assert len(answer.text) < 400
