"""A client that is generated from the server's own OpenAPI document works with that server."""

import base64
import importlib
import os
import subprocess
import sys
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

INSTALLED = Path(sys.prefix) / "clients"
NAMES = {
    "api.predict": ("predict", "predict_version"),
    "api.models": ("list_models", "get_model", "model_ready", "model_statistics"),
    "api.health": ("server_live", "server_ready"),
}


@pytest.fixture(scope="module")
def generated(demo_server, tmp_path_factory):
    """The modules of the generated package, and a client of it."""
    if not (INSTALLED / "openapi_python_client").is_dir():
        pytest.skip(f"openapi-python-client is not in {INSTALLED}: `make test-real` installs it")
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_bytes(httpx.get(demo_server.url + "/openapi.json").content)
    (folder / "config.yml").write_text("post_hooks: []\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    files = ["--path", "openapi.json", "--output-path", "fovea_generated", "--config", "config.yml"]
    done = subprocess.run(
        [*command, *files, "--fail-on-warning"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(INSTALLED)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    try:
        modules = {
            name: importlib.import_module(f"fovea_generated.{package}.{name}")
            for package, names in NAMES.items()
            for name in names
        }
        package = importlib.import_module("fovea_generated")
        models = importlib.import_module("fovea_generated.models")
        types = importlib.import_module("fovea_generated.types")
    finally:
        sys.path.remove(str(folder))
    with package.Client(base_url=demo_server.url) as client:
        yield SimpleNamespace(**modules, client=client, models=models, File=types.File)


def names(image) -> list[str]:
    return sorted(each.class_name for each in image.detections)


@pytest.fixture(scope="module")
def truth(demo_truth) -> list[str]:
    return sorted(each["class_name"] for each in demo_truth["scene-1.jpg"])


def test_it_sends_a_plain_image(generated, scene, truth):
    for ask in (generated.predict.sync, partial(generated.predict_version.sync, version=1)):
        image = generated.File(payload=BytesIO(scene))
        answer = ask("digits", client=generated.client, body=image)
        assert names(answer.images[0]) == truth


def test_it_sends_options_in_the_address(generated, scene, truth):
    image = generated.File(payload=BytesIO(scene))
    answer = generated.predict.sync(
        "digits", client=generated.client, body=image, classes=["1", "6"], agnostic=True
    )
    assert names(answer.images[0]) == [name for name in truth if name in "16"]


def test_it_sends_a_form_of_images(generated, scene, second_scene, truth):
    parts = [
        generated.File(payload=BytesIO(data), file_name="a.jpg", mime_type="image/jpeg")
        for data in (scene, second_scene, b"text")
    ]
    form = generated.models.PredictForm(file=parts, classes=["1", "9"])
    answer = generated.predict.sync("digits", client=generated.client, body=form)
    assert names(answer.images[0]) == [name for name in truth if name in "19"]
    assert len(answer.images) == 3
    assert answer.images[2].error.code == "invalid_image"


def test_it_sends_json(generated, scene, truth):
    source = generated.models.ImageSource(data=base64.b64encode(scene).decode())
    request = generated.models.PredictRequest(images=[source], classes=[1, "6"])
    answer = generated.predict.sync("digits", client=generated.client, body=request)
    assert names(answer.images[0]) == [name for name in truth if name in "16"]


def test_it_reads_errors(generated):
    image = generated.File(payload=BytesIO(b"text"))
    answer = generated.predict.sync("digits", client=generated.client, body=image)
    assert isinstance(answer, generated.models.Error)
    assert answer.error.code == "invalid_image"
    missing = generated.get_model.sync("nobody", client=generated.client)
    assert missing.error.code == "not_found"


def test_it_reads_models_statistics_and_health(generated):
    client = generated.client
    [summary] = generated.list_models.sync(client=client).models
    assert (summary.name, summary.ready, summary.label_count) == ("digits", True, 10)
    model = generated.get_model.sync("digits", client=client)
    assert model.card.family is not None
    assert model.labels == [str(digit) for digit in range(10)]
    statistics = generated.model_statistics.sync("digits", client=client)
    assert [each.version for each in statistics.versions] == ["1"]
    assert generated.model_ready.sync("digits", client=client).ready
    assert generated.server_ready.sync(client=client).ready
    assert generated.server_live.sync(client=client).live
