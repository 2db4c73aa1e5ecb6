"""The APIs are there when they are named, and change nothing of what was there before."""

import json
import shutil
import socket
from datetime import UTC, datetime

import httpx
import openapi_spec_validator
import pytest
from tests.built import build
from tests.server.registries import wait_until
from tests.serving import RunningServer, start_server

from fovea_engines.build.plan import BuildPlan
from fovea_preprocess.errors import InvalidOption
from fovea_server.auth.key import digest_of, new_token
from fovea_server.integrations.registry import parse_apis

pytestmark = pytest.mark.real


APIS = ("deepstack", "roboflow", "label-studio")
ADDRESSES = (
    ("POST", "/v1/vision/detection"),
    ("GET", "/v1/vision/custom/list"),
    ("POST", "/infer/object_detection"),
    ("POST", "/digits/1"),
    ("GET", "/model/registry"),
    ("GET", "/health"),
    ("POST", "/predict"),
    ("POST", "/label-studio/digits/predict"),
)
OWN = (
    ("GET", "/"),
    ("GET", "/page/page.js"),
    ("GET", "/docs"),
    ("GET", "/v1/models"),
    ("POST", "/v1/models"),
    ("POST", "/v1/nowhere"),
    ("GET", "/v1/health/ready"),
    ("GET", "/v2/health/ready"),
    ("POST", "/v2/models"),
    ("POST", "/v2/nowhere"),
    ("POST", "/page/page.js"),
    ("POST", "/docs"),
    ("OPTIONS", "/v1/models"),
)


@pytest.fixture(scope="module")
def servers(demo_repository, tmp_path_factory):
    """A server without an API, and one with all of them."""
    flags = [f"--api={api}" for api in APIS]
    started = [
        start_server(demo_repository, tmp_path_factory.mktemp("log"), given)
        for given in ((), flags)
    ]
    yield started
    for server in started:
        assert server.stop() == 0


def test_nothing_is_there_until_it_is_named(servers):
    without, with_apis = servers
    for method, path in ADDRESSES:
        assert httpx.request(method, without.url + path).status_code == 404
        assert httpx.request(method, with_apis.url + path).status_code != 404
    documents = [httpx.get(server.url + "/openapi.json").json() for server in servers]
    openapi_spec_validator.validate(documents[1])
    paths, more = (set(document["paths"]) for document in documents)
    assert paths < more
    assert not any("vision" in path or "infer" in path for path in paths)
    assert {"/v1/vision/detection", "/{dataset}/{version}", "/predict"} <= more - paths


@pytest.mark.parametrize(("method", "path"), OWN)
def test_what_was_there_is_as_it_was(servers, method, path):
    told = []
    for server in servers:
        answer = httpx.request(method, server.url + path, headers={"Accept": "text/html"})
        allow = answer.headers.get("allow")
        told.append((answer.status_code, allow, len(answer.content)))
    assert told[0] == told[1]


def test_predictions_are_as_they_were(servers, demo_model):
    scene = (demo_model.parent / "scene-1.jpg").read_bytes()
    answers = [httpx.post(s.predict_url("digits"), content=scene).json() for s in servers]
    assert answers[0]["images"] == answers[1]["images"]


def test_requests_are_counted_and_logged_for_their_model(servers, demo_model):
    server: RunningServer = servers[1]
    scene = (demo_model.parent / "scene-1.jpg").read_bytes()
    url = server.url + "/v1/models/digits/statistics"
    before = httpx.get(url).json()["durations"].get("+Inf", 0)
    answer = httpx.post(server.url + "/v1/vision/detection", files={"image": scene})
    assert answer.json()["count"] > 0
    assert httpx.get(url).json()["durations"]["+Inf"] == before + 1
    line = "'/v1/vision/detection' model='digits' status=200"
    wait_until(lambda: line in server.log.read_text())


def test_limits_and_secrets_hold(demo_repository, demo_model, tmp_path):
    flags = (
        *(f"--api={api}" for api in APIS),
        "--http-max-input-size=100000",
        "--http-restricted-api=inference:authorization=Basic dTpw",
    )
    server = start_server(demo_repository, tmp_path, flags)
    scene = (demo_model.parent / "scene-1.jpg").read_bytes()
    detection = server.url + "/v1/vision/detection"
    secret = {"auth": ("u", "p")}
    try:
        large = {"image": bytes(200_000)}
        for path, form, told in (
            ("/v1/vision/detection", {"files": large}, "error"),
            ("/infer/object_detection", {"content": bytes(200_000)}, "message"),
            ("/predict", {"content": bytes(200_000)}, "error"),
        ):
            answer = httpx.post(server.url + path, **form, **secret)
            assert answer.status_code == 413
            assert "--http-max-input-size" in answer.json()[told]
            answer = httpx.post(server.url + path, **form)
            assert answer.status_code == 403
            assert "restricted" in answer.json()[told]
        allowed = httpx.post(detection, files={"image": scene[:50_000]}, **secret)
        assert allowed.status_code in (200, 400)
        late = {"X-Request-Timeout-Ms": "0.001"}
        answer = httpx.post(detection, files={"image": scene[:50_000]}, headers=late, **secret)
        assert (answer.status_code, answer.json()["success"]) == (504, False)
        assert "Traceback" not in server.log.read_text()
    finally:
        server.stop()


def test_several_models_and_no_name(demo_repository, demo_model, tmp_path):
    repository = tmp_path / "models"
    shutil.copytree(demo_repository, repository)
    build(BuildPlan(demo_model, "numbers", repository, "onnxruntime"))
    server = start_server(repository, tmp_path, ["--api=deepstack", "--no-page"])
    try:
        files = {"image": b"x"}
        answer = httpx.post(server.url + "/v1/vision/detection", files=files)
        assert answer.status_code == 400
        for told in ("digits, numbers", "/v1/vision/custom/MODEL", "--api deepstack="):
            assert told in answer.json()["error"]
    finally:
        server.stop()


def test_settings():
    assert parse_apis(()) == {}
    given = parse_apis(("deepstack=yolov8n", "roboflow"))
    assert given == {"deepstack": "yolov8n", "roboflow": None}
    for wrong, says in (
        (("deepstak",), "the APIs are deepstack, frigate-zmq, label-studio, roboflow"),
        (("deepstack", "deepstack=a"), "twice"),
        (("label-studio=",), "has no model name"),
    ):
        with pytest.raises(InvalidOption, match=says):
            parse_apis(wrong)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "deepstak",
            "unknown API 'deepstak'; the APIs are deepstack, frigate-zmq, label-studio, roboflow",
        ),
        (
            "deepstack=digts",
            "--api deepstack=digts: the repository has no such model; did you mean",
        ),
        ("roboflow=digits", "--api roboflow accepts no model name"),
        ("label-studio=x", "the repository has no such model; its models are digits"),
    ],
)
def test_an_unknown_name_is_refused(fovea, demo_repository, given, says):
    """Also where the ports are taken, which is told later."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"--http-port={taken.getsockname()[1]}"
        code, _, err = fovea("serve", demo_repository, "--api", given, port)
    assert (code, says in err) == (2, True), err


def test_a_model_that_may_still_come_is_warned_of(demo_repository, tmp_path):
    flags = ["--api=deepstack=later", "--model-control-mode=explicit"]
    server = start_server(demo_repository, tmp_path, flags)
    try:
        answer = httpx.post(server.url + "/v1/vision/detection", files={"image": b"x"})
        assert (answer.status_code, "'later'" in answer.json()["error"]) == (404, True)
        assert "--api deepstack=later: the repository has no such model" in server.log.read_text()
    finally:
        server.stop()


@pytest.mark.parametrize("given", ["DeepStack", "codeproject", "CodeProject.AI", "frigate"])
def test_an_api_may_have_the_name_of_those_who_speak_it(given):
    assert parse_apis([given, "Roboflow"]) == {"deepstack": None, "roboflow": None}
    assert parse_apis([f"{given}=M"]) == {"deepstack": "M"}


# Clients of other software send their keys in the fields that they have for them.


NAMES = ("right", "metrics", "unknown")


@pytest.fixture(scope="module")
def keys():
    return {name: new_token() for name in NAMES}


@pytest.fixture(scope="module")
def guarded(api_repository, keys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    entries = [
        {
            "name": name,
            "secrets": [{"sha256": digest_of(keys[name])}],
            "scopes": [scope],
            "created": datetime.now(UTC).isoformat(),
        }
        for name, scope in (("right", "predict"), ("metrics", "metrics"))
    ]
    (folder / "keys.json").write_text(json.dumps({"keys": entries}))
    flags = [f"--keys={folder / 'keys.json'}", "--api=deepstack=yolov8n", "--api=roboflow"]
    server = start_server(api_repository, folder, flags)
    yield server
    assert server.stop() == 0
    # The address of a request is logged, and without the key in it.
    said = server.log.read_text()
    assert "api_key=..." in said
    assert not [key for key in keys.values() if key in said]


@pytest.mark.parametrize(("name", "status"), [("right", 200), ("metrics", 403), ("unknown", 401)])
@pytest.mark.parametrize("mode", ["v0", "v1"])
def test_inference_sdk_sends_its_key(run, guarded, keys, images, mode, name, status):
    call = [mode, "infer", {"inference_input": str(images[0]), "model_id": "yolov8n/1"}, {}]
    [answer] = run("with_inference_sdk.py", [guarded.url, [call], keys[name]])
    if status == 200:
        assert answer["predictions"]
    else:
        assert answer["status"] == status


@pytest.mark.parametrize(
    ("name", "said"), [("right", ""), ("metrics", "403"), ("unknown", "401"), ("", "401")]
)
def test_deepstacks_client_sends_its_key(run, guarded, keys, images, name, said):
    line = [guarded.port, str(images[0]), [None, "yolov8n"], keys.get(name, "")]
    for answer in run("with_deepstack.py", line):
        if said:
            assert said in answer
        else:
            assert answer


@pytest.mark.parametrize(
    ("name", "status"), [("right", 200), ("metrics", 200), ("unknown", 401), ("", 401)]
)
@pytest.mark.parametrize("form", ["files", "data"])
def test_deepstacks_list_takes_the_key_of_a_form(guarded, keys, form, name, status):
    key = keys.get(name, "")
    sent = {"files": {"api_key": (None, key)}} if form == "files" else {"data": {"api_key": key}}
    answer = httpx.post(f"{guarded.url}/v1/vision/custom/list", **sent)
    assert answer.status_code == status
    if status == 200:
        assert "yolov8n" in answer.json()["models"]


def test_a_stranger_does_not_learn_which_models_there_are(guarded, images):
    url, image = f"{guarded.url}/v1/vision/custom/", images[0].read_bytes()
    answers = [
        httpx.post(url + name, files={"image": image}, data={"api_key": "wrong"})
        for name in ("yolov8n", "nothing")
    ]
    assert [answer.status_code for answer in answers] == [401, 401]


def test_a_query_is_no_place_for_a_key_of_our_own_routes(guarded, keys, images):
    for path in ("/v1/models/yolov8n/predict", "/v2/models/yolov8n/infer"):
        asked = httpx.post(
            f"{guarded.url}{path}?api_key={keys['right']}", content=images[0].read_bytes()
        )
        assert asked.status_code == 401
