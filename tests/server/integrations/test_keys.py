"""Clients of other software send their keys in the fields that they have for them."""

import json
from datetime import UTC, datetime

import httpx
import pytest
from tests.serving import start_server

from fovea_server.auth.key import digest_of, new_token

pytestmark = pytest.mark.real

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
