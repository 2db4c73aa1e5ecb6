"""A head of a user's own, in a file: built, published, served, and refused where it must be."""

import json
import shutil
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tests.built import build
from tests.e2e.conftest import images
from tests.odd import HEAD, odd_model, replace_head
from tests.serving import start_server

from fovea_engines.build.plan import BuildPlan
from fovea_engines.heads.head_file import load_head

pytestmark = pytest.mark.slow

LAST = "        return detections("
# The demo's photographs show no digit, so that a build and a start do not run these.
FOUND = f"        if what.max() > 0.5:\n            {{}}\n{LAST}"
FAILS = {
    "raises": ("what[99]", "raises/1/head.py, line 17: IndexError: index 99 is out of bounds"),
    "leaves": ("raise SystemExit(3)", "leaves/1/head.py, line 17: SystemExit: 3"),
    "none": (
        "return None",
        "line 11: decode returns NoneType, but a head of task detect must return",
    ),
    "nan": (
        "return Detections(boxes * np.nan, scores, class_ids)",
        "line 11: boxes of the result contain NaN or infinity",
    ),
}
REFUSED = {
    "changed": "changed/1/head.py was changed after the build",
    "lost": "ModuleNotFoundError: No module named 'nothing'",
    "broken": "broken/1/head.py, line 17: SyntaxError",
}


@pytest.fixture(scope="module")
def odd(demo_model, tmp_path_factory) -> Path:
    """A repository with the odd model, and the demo beside it."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd.py").write_text(HEAD)
    family = load_head(folder / "odd.py").family
    source = odd_model(demo_model, folder / "odd.onnx")
    build(BuildPlan(source, "odd", folder / "r", "onnxruntime", family=family))
    build(BuildPlan(demo_model, "digits", folder / "r", "onnxruntime"))
    return folder / "r"


@pytest.fixture(scope="module")
def server(odd, tmp_path_factory):
    """A server of these, and of models with code that fails."""
    folder = tmp_path_factory.mktemp("served")
    repository = shutil.copytree(odd, folder / "r")
    texts = {name: HEAD.replace(LAST, FOUND.format(code)) for name, (code, _) in FAILS.items()}
    texts |= {"lost": f"import nothing\n{HEAD}", "broken": f"{HEAD})", "changed": HEAD}
    texts["stuck"] = HEAD.replace(LAST, FOUND.format("while True: pass"))
    for name, text in texts.items():
        model = shutil.copytree(odd / "odd", repository / name)
        config = model / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "odd"', f'name: "{name}"'))
        replace_head(model / "1", text.replace("corners, ", "Detections, corners, "))
    with (repository / "changed" / "1" / "head.py").open("a") as file:
        file.write(f"open({str(folder / 'ran')!r}, 'w')\n")
    flags = ["--allow-code", "--exit-timeout-secs=0.5"]
    server = start_server(repository, folder, flags, wait=False)
    until_loaded(server, repository)
    yield server
    server.stop()
    assert not (folder / "ran").exists()


def until_loaded(server, repository: Path) -> None:
    names, tried = {path.name for path in repository.iterdir()}, set()
    while tried != names:
        models = httpx.get(f"{server.url}/v1/models").json()["models"]
        states = {one["name"]: one["versions"][0]["state"] for one in models if one["versions"]}
        tried = {name for name, state in states.items() if state in ("READY", "UNAVAILABLE")}
        time.sleep(0.05)


def objects(answer: httpx.Response) -> list:
    assert answer.status_code == 200, answer.text
    return answer.json()["images"][0]["detections"]


def test_it_finds_what_the_family_of_fovea_finds(server, scene):
    own, known = (httpx.post(server.predict_url(name), content=scene) for name in ("odd", "digits"))
    assert objects(own) == objects(known) != []
    options = {"conf": 0.88, "classes": "1,9", "max_det": 2}
    own, known = (
        httpx.post(server.predict_url(name), content=scene, params=options)
        for name in ("odd", "digits")
    )
    assert objects(own) == objects(known) != []
    assert len(objects(own)) == 2


@pytest.mark.parametrize("protocol", [http_client, grpc_client], ids=["http", "grpc"])
def test_it_answers_over_v2(server, scene, protocol):
    port = server.port if protocol is http_client else server.grpc_port
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        own, known = (
            client.infer(name, images(protocol, scene, name="images")) for name in ("odd", "digits")
        )
    for name in ("num_detections", "boxes", "scores", "class_ids", "class_names"):
        np.testing.assert_array_equal(own.as_numpy(name), known.as_numpy(name))


def test_its_card_has_the_file(server, odd):
    model = httpx.get(f"{server.url}/v1/models/odd").json()
    assert (model["task"], model["labels"]) == ("detect", list("0123456789"))
    assert model["card"]["family"].startswith("odd.py@")
    assert (odd / "odd" / "1" / "head.py").read_text() == HEAD
    assert "head.py" in json.loads((odd / "odd" / "1" / "card.json").read_text())["files"]


def test_without_the_flag_it_is_refused_and_others_are_served(odd, serve, scene):
    server = serve(odd, wait=False)
    until_loaded(server, odd)
    assert httpx.get(f"{server.url}/v1/health/ready").status_code == 503
    answer = httpx.post(server.predict_url("odd"), content=scene)
    assert answer.status_code == 503
    assert "odd/1/head.py: run it with --allow-code" in answer.json()["error"]["message"]
    assert objects(httpx.post(server.predict_url("digits"), content=scene))


@pytest.mark.parametrize("name", REFUSED)
def test_code_that_is_not_that_of_the_build_or_cannot_be_loaded_is_refused(server, scene, name):
    answer = httpx.post(server.predict_url(name), content=scene)
    assert answer.status_code == 503
    assert REFUSED[name] in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", FAILS)
def test_code_that_fails_is_an_error_of_its_request(server, scene, name):
    for _ in range(2):
        answer = httpx.post(server.predict_url(name), content=scene)
        assert answer.status_code == 500
        assert FAILS[name][1] in answer.json()["error"]["message"]
    assert objects(httpx.post(server.predict_url("odd"), content=scene))
    assert "Traceback" not in server.log.read_text()


def test_code_that_does_not_end_holds_its_own_model_alone(server, scene):
    """Last, as its thread goes on."""
    headers = {"X-Request-Timeout-Ms": "300"}
    answer = httpx.post(server.predict_url("stuck"), content=scene, headers=headers)
    assert answer.status_code == 504
    assert objects(httpx.post(server.predict_url("odd"), content=scene))
