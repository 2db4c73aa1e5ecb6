"""What the server tells of its models and of itself under /v1."""

import json
import shutil
import time

import httpx
import pytest

from fovea_client import Client, ServerError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(demo_server):
    with Client(demo_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def mixed(demo_repository, demo_model, tmp_path_factory):
    """A repository with a built model, a plain one, and one that cannot be loaded."""
    repository = tmp_path_factory.mktemp("mixed") / "repository"
    shutil.copytree(demo_repository, repository)
    for name in ("plain", "broken", "damaged"):
        (repository / name / "1").mkdir(parents=True)
    shutil.copy(demo_model, repository / "plain" / "1" / "model.onnx")
    (repository / "damaged" / "1" / "model.onnx").write_bytes(b"no model")
    (repository / "broken" / "config.pbtxt").write_text("max_batch_size: many")
    return repository


def test_the_list_says_what_can_be_asked_of_each_model(client):
    [model] = client.models()
    assert (model.name, model.version, model.task) == ("digits", "1", "detect")
    assert (model.ready, model.reason, model.accepts_images) == (True, None, True)
    assert (model.backend, model.precision, model.label_count) == ("onnxruntime", "fp32", 10)
    assert [(v.version, v.state, v.ready) for v in model.versions] == [("1", "READY", True)]


def test_a_model_tells_its_tensors_labels_and_card(client, demo_repository):
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
def test_what_is_not_there_is_404(client, name, version):
    with pytest.raises(ServerError) as caught:
        client.model(name, version)
    assert (caught.value.status, caught.value.code) == (404, "not_found")


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


def test_readiness_and_health(demo_server):
    for path in ("/v1/health/ready", "/v1/models/digits/ready"):
        answer = httpx.get(demo_server.url + path)
        assert (answer.status_code, answer.json()) == (200, {"ready": True})
    answer = httpx.get(demo_server.url + "/v1/health/live")
    assert (answer.status_code, answer.json()) == (200, {"live": True})
    assert httpx.get(demo_server.url + "/v1/models/nobody/ready").status_code == 404


def _started(client: Client, url: str) -> bool:
    ready = client.ready("digits") and client.ready("plain")
    return ready and "damaged" in httpx.get(f"{url}/v1/health/ready").text


def test_what_is_not_ready_says_why(mixed, serve):
    server = serve(mixed, wait=False)
    with Client(server.url) as client:
        until = time.monotonic() + 60
        while time.monotonic() < until and not _started(client, server.url):
            time.sleep(0.05)
        models = {model.name: model for model in client.models()}
        assert {name: model.ready for name, model in models.items()} == {
            "broken": False,
            "damaged": False,
            "digits": True,
            "plain": True,
        }
        assert "config.pbtxt" in models["broken"].reason
        assert models["broken"].versions == ()
        [version] = models["damaged"].versions
        assert (version.state, version.reason) == ("UNAVAILABLE", models["damaged"].reason)
        plain = client.model("plain")
        assert plain.ready
        assert plain.card is None
        assert "card.json" in plain.card_reason
        damaged = client.model("damaged")
        assert (damaged.card, damaged.card_reason) == (None, damaged.reason)
    for path in ("health/ready", "models/damaged/ready", "models/broken", "models/broken/ready"):
        answer = httpx.get(f"{server.url}/v1/{path}")
        assert answer.status_code == 503, path
        assert answer.json()["error"]["message"]
    assert httpx.get(server.url + "/v1/health/live").status_code == 200


def test_each_route_asks_for_the_header_of_its_part(demo_repository, serve):
    parts = {
        "metadata": ("/v1/models", "/v1/models/digits", "/v1/models/digits/versions/1"),
        "statistics": ("/v1/models/digits/statistics",),
        "health": ("/v1/health/live", "/v1/health/ready", "/v1/models/digits/ready"),
    }
    flags = [f"--http-restricted-api={part}:key={part}" for part in ("metadata", "statistics")]
    server = serve(demo_repository, *flags)
    for part, paths in parts.items():
        for path in paths:
            open_to_all = httpx.get(server.url + path).status_code
            assert open_to_all == (200 if part == "health" else 403), path
            assert httpx.get(server.url + path, headers={"key": part}).status_code == 200


def test_the_list_asks_for_the_header_of_the_repository_index_too(demo_repository, serve):
    server = serve(
        demo_repository, "--http-restricted-api=metadata:key=m",
        "--http-restricted-api=model-repository:admin=r",
    )  # fmt: skip
    meta, both = {"key": "m"}, {"key": "m", "admin": "r"}
    for headers, status in (({}, 403), (meta, 403), ({"admin": "r"}, 403), (both, 200)):
        assert httpx.get(server.url + "/v1/models", headers=headers).status_code == status, headers
    assert httpx.get(server.url + "/v1/models/digits", headers=meta).status_code == 200


def test_no_answer_has_a_path_of_the_machine(mixed, serve, tmp_path):
    """Neither of cards of older builds, nor of what exporters write, nor of failed models."""
    repository = tmp_path / "private" / "repository"
    shutil.copytree(mixed, repository)
    path = repository / "digits" / "1" / "card.json"
    card = json.loads(path.read_bytes())
    card["agreement"]["images_from"] = "/srv/private/photos"
    card["tensorrt"] = card["agreement"]
    card["metadata"]["description"] = "digits trained on /home/private/data/digits.yaml"
    plugin = {"path": "/opt/private/libplugins.so", "sha256": "0"}
    card["builder"] = {
        "profiles": [{"min": 1, "opt": 1, "max": 1}], "workspace": None, "level": 3,
        "capabilities": [], "plugins": [plugin],
    }  # fmt: skip
    path.write_text(json.dumps(card))
    server = serve(repository, wait=False)
    with Client(server.url) as client:
        until = time.monotonic() + 60
        while time.monotonic() < until and not _started(client, server.url):
            time.sleep(0.05)
        shown = client.model("digits").card
    assert shown["agreement"]["images_from"] == shown["tensorrt"]["images_from"] == "photos"
    assert shown["builder"]["plugins"] == [{**plugin, "path": "libplugins.so"}]
    assert shown["metadata"]["description"] == "digits trained on digits.yaml"
    paths = ("v1/models", "v1/health/ready", "v2/models/digits/config", "v1/models/digits")
    answers = [httpx.get(f"{server.url}/{path}") for path in paths]
    answers += [httpx.get(f"{server.url}/v1/models/{name}") for name in ("broken", "damaged")]
    answers += [httpx.post(f"{server.url}/v1/models/{name}/predict") for name in ("broken",)]
    answers.append(httpx.post(f"{server.url}/v2/repository/index"))
    for answer in answers:
        assert "private" not in answer.text, answer.url
    assert "broken/config.pbtxt" in answers[-1].text
    assert "damaged/1/model.onnx" in answers[-1].text
