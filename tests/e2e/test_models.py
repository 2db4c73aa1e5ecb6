"""Models as folders bring them, with their versions: what is served and told of them, and what is
said of a model that cannot be.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from onnx.external_data_helper import convert_model_to_external_data
from tests.built import build
from tests.keyed import until
from tests.server.registries import ADDER_CONFIG, adder
from tests.serving import RunningServer, start_server
from tritonclient.utils import InferenceServerException

from fovea_client import Client, ServerError
from fovea_engines.build.plan import BuildPlan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(demo_server) -> Iterator[Client]:
    with Client(demo_server.url) as client:
        yield client


def test_a_model_tells_what_can_be_asked_of_it_its_tensors_labels_and_card(client, demo_repository):
    [listed] = client.models()
    assert (listed.name, listed.version, listed.task) == ("digits", "1", "detect")
    assert (listed.ready, listed.reason, listed.accepts_images) == (True, None, True)
    assert (listed.backend, listed.precision, listed.label_count) == ("onnxruntime", "fp32", 10)
    assert [(v.version, v.state, v.ready) for v in listed.versions] == [("1", "READY", True)]
    model = client.model("digits")
    assert model == client.model("digits", version=1)
    assert model.card == json.loads((demo_repository / "digits" / "1" / "card.json").read_bytes())
    assert model.card_reason is None
    assert model.labels == tuple("0123456789")
    assert model.preprocess == model.card["preprocess"]
    height, width = model.preprocess["height"], model.preprocess["width"]
    [image] = model.inputs
    assert (image.datatype, image.shape[-2:]) == ("FP32", (height, width))
    assert [output.name for output in model.outputs] == [o["name"] for o in model.card["outputs"]]


@pytest.mark.parametrize(("name", "version"), [("nobody", None), ("digits", 9)])
def test_what_is_not_there_is_404(client, demo_server, name, version):
    with pytest.raises(ServerError) as caught:
        client.model(name, version)
    assert (caught.value.status, caught.value.code) == (404, "not_found")
    path = name if version is None else f"{name}/versions/{version}"
    ready = httpx.get(f"{demo_server.url}/v2/models/{path}/ready")
    assert (ready.status_code, ready.json()["ready"]) == (400, False)


def test_statistics_count_predictions(demo_server, scene):
    url = f"{demo_server.url}/v1/models/digits/statistics"

    def counted() -> tuple[dict[str, object], int]:
        statistics = httpx.get(url).json()
        [version] = statistics["versions"]
        return version, statistics["durations"].get("+Inf", 0)

    before, requests_before = counted()
    for _ in range(3):
        httpx.post(demo_server.predict_url("digits"), content=scene)
    after, requests_after = counted()
    assert requests_after == requests_before + 3
    assert after["pending"] == 0
    assert after["inference_count"] == before["inference_count"] + 3
    done = (each["inference_stats"]["success"] for each in (after, before))
    assert next(done)["ns"] > next(done)["ns"]
    assert after["version"] == "1"


def test_each_route_asks_for_the_header_of_its_part(demo_repository, serve):
    parts = {
        "metadata": ("/v1/models/digits", "/v1/models/digits/versions/1"),
        "statistics": ("/v1/models/digits/statistics",),
        "health": ("/v1/health/live", "/v1/health/ready", "/v1/models/digits/ready"),
    }
    flags = [f"--http-restricted-api={part}:key={part}" for part in ("metadata", "statistics")]
    server = serve(demo_repository, *flags, "--http-restricted-api=model-repository:admin=r")

    def status(path: str, **headers: str) -> int:
        return httpx.get(server.url + path, headers=headers).status_code

    for part, paths in parts.items():
        for path in paths:
            assert status(path) == (200 if part == "health" else 403), path
            assert status(path, key=part) == 200
    # The list is also the index of the repository.
    asked = ({}, {"key": "metadata"}, {"admin": "r"}, {"key": "metadata", "admin": "r"})
    assert [status("/v1/models", **headers) for headers in asked] == [403, 403, 403, 200]


@pytest.fixture(scope="module")
def mixed(demo_repository, demo_model, tmp_path_factory) -> Path:
    """A repository with a built model, a plain one, and two that cannot be loaded."""
    repository = tmp_path_factory.mktemp("private") / "repository"
    shutil.copytree(demo_repository, repository)
    for name in ("plain", "broken", "damaged"):
        (repository / name / "1").mkdir(parents=True)
    shutil.copy(demo_model, repository / "plain" / "1" / "model.onnx")
    (repository / "damaged" / "1" / "model.onnx").write_bytes(b"no model")
    (repository / "broken" / "config.pbtxt").write_text("max_batch_size: many")
    # Of older builds, and of what exporters write.
    path = repository / "digits" / "1" / "card.json"
    card = json.loads(path.read_bytes())
    card["agreement"]["images_from"] = "/srv/private/photos"
    card["tensorrt"] = card["agreement"]
    card["metadata"]["description"] = "digits trained on /home/private/data/digits.yaml"
    card["builder"] = {
        **{"profiles": [{"min": 1, "opt": 1, "max": 1}], "workspace": None, "level": 3},
        **{"capabilities": [], "plugins": [PLUGIN]},
    }
    path.write_text(json.dumps(card))
    return repository


PLUGIN = {"path": "/opt/private/libplugins.so", "sha256": "0"}


@pytest.fixture(scope="module")
def half_ready(mixed, tmp_path_factory) -> Iterator[RunningServer]:
    server = start_server(mixed, tmp_path_factory.mktemp("log"), wait=False)
    with Client(server.url) as client:
        until(lambda: client.ready("digits") and client.ready("plain"))
        until(lambda: "damaged" in httpx.get(f"{server.url}/v1/health/ready").text)
    yield server
    assert server.stop() == 0


def test_what_is_not_ready_says_why_and_others_are_served(half_ready, scene):
    with Client(half_ready.url) as client:
        models = {model.name: model for model in client.models()}
        ready = {name for name, model in models.items() if model.ready}
        assert (models.keys(), ready) == (
            {"broken", "damaged", "digits", "plain"},
            {"digits", "plain"},
        )
        assert "config.pbtxt" in models["broken"].reason
        assert models["broken"].versions == ()
        [version] = models["damaged"].versions
        assert (version.state, version.reason) == ("UNAVAILABLE", models["damaged"].reason)
        plain, damaged = client.model("plain"), client.model("damaged")
        assert plain.ready
        assert plain.card is None
        assert "card.json" in plain.card_reason
        assert (damaged.card, damaged.card_reason) == (None, damaged.reason)
        assert client.predict("digits", scene).detections
        with pytest.raises(ServerError) as refused:
            client.predict("damaged", scene)
        assert (refused.value.status, refused.value.code) == (503, "model_not_ready")
    for path in ("health/ready", "models/damaged/ready", "models/broken", "models/broken/ready"):
        answer = httpx.get(f"{half_ready.url}/v1/{path}")
        assert answer.status_code == 503, path
        assert answer.json()["error"]["message"]
    assert httpx.get(f"{half_ready.url}/v2/health/ready").status_code == 400
    assert httpx.get(f"{half_ready.url}/v1/health/live").status_code == 200


def test_no_answer_has_a_path_of_the_machine(half_ready):
    with Client(half_ready.url) as client:
        shown = client.model("digits").card
    assert shown["agreement"]["images_from"] == shown["tensorrt"]["images_from"] == "photos"
    assert shown["builder"]["plugins"] == [{**PLUGIN, "path": "libplugins.so"}]
    assert shown["metadata"]["description"] == "digits trained on digits.yaml"
    paths = (
        "models",
        "health/ready",
        *(f"models/{each}" for each in ("digits", "broken", "damaged")),
    )
    answers = [httpx.get(f"{half_ready.url}/v1/{path}") for path in paths]
    answers.append(httpx.get(f"{half_ready.url}/v2/models/digits/config"))
    answers.append(httpx.post(half_ready.predict_url("broken")))
    answers.append(httpx.post(f"{half_ready.url}/v2/repository/index"))
    for answer in answers:
        assert "private" not in answer.text, answer.url
    assert "broken/config.pbtxt" in answers[-1].text
    assert "damaged/1/model.onnx" in answers[-1].text


def test_an_empty_repository_is_not_ready_and_says_so(tmp_path, serve):
    server = serve(tmp_path, wait=False)
    ready = f"{server.url}/v2/health/ready"
    until(lambda: "there is no model in" in httpx.get(ready).json()["reason"])
    assert httpx.get(ready).status_code == 400
    assert httpx.post(server.predict_url("digits"), content=b"x").status_code == 404


BROKEN = 'max_batch_size: 4\ninput [\n  { name: "images" data_typ: TYPE_FP32 }\n]\n'
REASON = (
    "config.pbtxt is not a model configuration: line 3, column 20: "
    'Message type "inference.ModelInput" has no field named "data_typ"'
)


@pytest.mark.parametrize("explicit", [False, True])
def test_a_configuration_that_does_not_parse(serve, demo_repository, tmp_path, explicit):
    repository = tmp_path / "repository"
    shutil.copytree(demo_repository / "digits", repository / "broken")
    (repository / "broken" / "config.pbtxt").write_text(BROKEN)
    server = serve(repository, *(["--model-control-mode=explicit"] * explicit), wait=explicit)
    load = f"{server.url}/v2/repository/models/broken/load"
    if explicit:
        loaded = httpx.post(load)
        assert loaded.status_code == 500
        # Clients look for the text that Triton has.
        told = "failed to load 'broken', failed to poll from model repository: "
        assert loaded.json()["error"].startswith(told)
        assert loaded.json()["error"].endswith(REASON)
        with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            with pytest.raises(InferenceServerException) as refusal:
                client.load_model("broken")
            assert refusal.value.message().endswith(REASON)
            assert refusal.value.status() == str(grpc.StatusCode.INTERNAL)
            assert client.get_model_repository_index().models[0].reason.endswith(REASON)
    ready = httpx.get(f"{server.url}/v2/models/broken/ready")
    assert (ready.status_code, ready.json()["reason"].endswith(REASON)) == (400, True)
    [entry] = httpx.post(f"{server.url}/v2/repository/index").json()
    assert (entry["name"], entry["state"]) == ("broken", "UNAVAILABLE")
    assert entry["reason"].endswith(REASON)
    ready = httpx.get(f"{server.url}/v2/health/ready")
    # What requests load does not change the server's readiness; a file that is mended loads.
    assert (ready.status_code == 200) == explicit
    if explicit:
        (repository / "broken" / "config.pbtxt").unlink()
        assert httpx.post(load, timeout=60).status_code == 200
        [entry] = httpx.post(f"{server.url}/v2/repository/index").json()
        assert entry == {"name": "broken", "version": "1", "state": "READY"}
    else:
        assert REASON in ready.json()["reason"]


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="module")
def two_versions(demo_model, tmp_path_factory) -> Path:
    """A repository with the demo model as version 1, and as version 2 with other labels."""
    repository = tmp_path_factory.mktemp("versions") / "repository"
    for labels in (None, WORDS):
        build(BuildPlan(demo_model, "digits", repository, "onnxruntime", labels=labels))
    return repository


def with_policy(repository: Path, policy: str) -> Path:
    (repository / "digits" / "config.pbtxt").write_text(f"version_policy {{ {policy} }}")
    return repository


def names(response) -> list[str]:
    return sorted(d["class_name"] for d in response.json()["images"][0]["detections"])


def test_versions_side_by_side_answer_each_with_its_own_labels(two_versions, serve, scene, fovea):
    server = serve(with_policy(two_versions, "all {}"))

    def predict(path: str) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/models/digits/{path}", content=scene)

    first, second = predict("versions/1/predict"), predict("versions/2/predict")
    assert (first.json()["version"], second.json()["version"]) == ("1", "2")
    assert names(first)
    assert sorted(WORDS[int(name)] for name in names(first)) == names(second)
    assert predict("predict").json()["version"] == "2"
    missing = predict("versions/3/predict")
    assert missing.status_code == 404
    assert "served versions: 1, 2" in missing.json()["error"]["message"]
    for version, status in ((1, 200), (2, 200), (3, 400)):
        ready = httpx.get(f"{server.url}/v2/models/digits/versions/{version}/ready")
        assert ready.status_code == status
    # The policy changes, and the server has loaded the old version all the same.
    with_policy(two_versions, "latest { }")
    given = ("digits", "--repository", two_versions, "--url", server.url)
    code, out, err = fovea("versions", *given, "--prune", "--keep=1", "--yes", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert [(one["served"], one["server"]) for one in document["versions"]] == [
        (False, "READY"), (True, "READY"),
    ]  # fmt: skip
    assert (document["deleted"], len(list((two_versions / "digits").glob("[12]")))) == ([], 2)
    server.stop()
    code, _, err = fovea("versions", *given, "--prune", "--keep=1", "--yes")
    assert (code, "is a server running there?" in err) == (1, True), err


@pytest.mark.parametrize(
    ("policy", "served"),
    [("latest { num_versions: 1 }", 2), ("specific { versions: [1] }", 1)],
)
def test_only_what_the_policy_names_is_served(two_versions, serve, scene, policy, served):
    server = serve(with_policy(two_versions, policy))
    answer = httpx.post(server.predict_url("digits"), content=scene).json()
    assert answer["version"] == str(served)
    other = f"{server.url}/v1/models/digits/versions/{3 - served}"
    refused = httpx.post(f"{other}/predict", content=scene)
    assert refused.status_code == 404
    told = refused.json()["error"]["message"]
    assert told.startswith(f"version {3 - served} of model 'digits' exists, but is not served")
    # As it is told.
    [path] = re.findall(r"POST (\S+)", told)
    [listed] = httpx.get(f"{server.url}/v1/models").json()["models"]
    assert path in next(each["reason"] for each in listed["versions"] if not each["ready"])
    loaded = httpx.post(f"{server.url}{path}")
    assert (loaded.status_code, loaded.json()["version"]) == (200, str(3 - served)), loaded.text
    by_number = httpx.post(f"{other}/predict", content=scene).json()["version"]
    by_name = httpx.post(server.predict_url("digits"), content=scene).json()["version"]
    assert (by_number, by_name) == (str(3 - served), str(served))
    missing = httpx.post(f"{server.url}/v1/models/digits/versions/9/load")
    assert (missing.status_code, "has no version 9" in missing.text) == (404, True)
    from_afar = {"x-forwarded-for": "192.0.2.1"}
    assert httpx.post(f"{server.url}{path}", headers=from_afar).status_code == 403


def test_a_version_that_goes_is_in_the_log(two_versions, serve):
    flags = ("--model-control-mode=poll", "--repository-poll-secs=0.2")
    repository = with_policy(two_versions, "all { }")
    server = serve(repository, *flags)
    with_policy(two_versions, "specific { versions: [1] }")
    until(lambda: "model digits version 2 is unloaded" in server.log.read_text())


PYTHON = 'backend: "python"\nmax_batch_size: 4\n'


@pytest.fixture(scope="module")
def triton(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    models = folder / "models"
    adder(models, "plus", config=ADDER_CONFIG)

    beside = adder(models, "beside") / "1"
    model = onnx.load(beside / "model.onnx")
    (beside / "model.onnx").unlink()
    (beside / "model.onnx").mkdir()
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, beside / "model.onnx" / "model.onnx")

    (adder(models, "loose", config=ADDER_CONFIG) / "1" / "model.onnx").rename(
        models / "loose" / "model.onnx"
    )
    (models / "loose" / "1").rmdir()
    (adder(models, "named") / "1").rename(models / "named" / "v1")
    adder(models, "my model")
    adder(models, "modèle")
    (models / "notes").mkdir()
    (models / "notes" / "read me.txt").write_text("no model")
    adder(models, "plan", config=f'{ADDER_CONFIG}platform: "tensorrt_plan"')
    (models / "script" / "1").mkdir(parents=True)
    (models / "script" / "1" / "model.py").write_text("class TritonPythonModel: pass")
    (models / "script" / "config.pbtxt").write_text(PYTHON)
    decoupled = f"{ADDER_CONFIG}model_transaction_policy {{ decoupled: true }}"
    adder(models, "stream", config=decoupled)

    flags = ("--strict-readiness=false",)
    server = start_server(models, folder, flags)
    yield server
    assert server.stop() == 0


@pytest.fixture
def entries(triton) -> dict[str, dict]:
    index = httpx.post(triton.url + "/v2/repository/index", json={}).json()
    return {entry["name"]: entry for entry in index}


def infer(server, name: str) -> list[int]:
    given = http_client.InferInput("X", (1, 4), "INT32")
    given.set_data_from_numpy(np.zeros((1, 4), np.int32))
    with http_client.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        return client.infer(name, [given]).as_numpy("Y")[0].tolist()


def test_weights_may_lie_beside_the_model_in_a_folder_of_its_name(triton):
    assert infer(triton, "beside") == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["loose", "named"])
def test_a_model_without_a_version_is_there_and_says_what_it_lacks(triton, entries, name):
    told = f"put its files into a version's folder, {name}/1"
    assert entries[name]["state"] == "UNAVAILABLE"
    assert told in entries[name]["reason"]
    assert told in triton.log.read_text()


def test_a_folder_that_cannot_name_a_model_is_named_and_others_are_not(triton, entries):
    text = triton.log.read_text()
    for name in ("my model", "modèle"):
        assert f"the model in folder {name!r} is not served: rename the folder" in text
    assert "notes" not in text
    assert entries["notes"] == {"name": "notes"}


def test_what_is_wrong_with_a_configuration_says_what_to_write(entries):
    told = 'model.onnx is of platform "onnxruntime_onnx"; write that into config.pbtxt'
    assert told in entries["plan"]["reason"]
    assert "Fovea itself decodes" in entries["script"]["reason"]


def test_a_decoupled_model_is_run_by_streams_alone_and_the_log_says_so(triton):
    assert "model stream is decoupled" in triton.log.read_text()
    assert "no effect here: model_transaction_policy" not in triton.log.read_text()
    with pytest.raises(InferenceServerException, match="decoupled transaction policy"):
        infer(triton, "stream")
    given = grpc_client.InferInput("X", (1, 4), "INT32")
    given.set_data_from_numpy(np.zeros((1, 4), np.int32))
    answers = []
    with grpc_client.InferenceServerClient(f"127.0.0.1:{triton.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        client.async_stream_infer("stream", [given])
        client.stop_stream()
    [(result, error)] = answers
    assert error is None
    assert result.as_numpy("Y")[0].tolist() == [1, 1, 1, 1]
