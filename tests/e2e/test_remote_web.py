"""Repositories behind a web server and in the Hugging Face Hub, served by a real server."""

import shutil

import httpx
import pytest
from tests.server.registries import wait_until
from tests.serving import start_server
from tests.stores import environment, remote_packages
from tests.web_store import web_store

pytestmark = pytest.mark.real

POLL = ("--model-control-mode=poll", "--repository-poll-secs=0.2")


@pytest.fixture
def folder(demo_versions, tmp_path):
    """A folder of the store, with version 1."""
    shutil.copytree(demo_versions / "digits" / "1", tmp_path / "store" / "digits" / "1")
    return tmp_path / "store"


@pytest.fixture
def web(folder):
    remote_packages()
    with web_store(folder) as store:
        yield store


@pytest.fixture
def serve(web, tmp_path):
    started = []

    def start(address, *flags, wait=True):
        flags = (f"--repository-cache={tmp_path / 'cache'}", "--allow-grpc=false", *flags)
        given = environment(HF_ENDPOINT=web.url, HF_TOKEN="a-token-that-is-never-logged")
        started.append(start_server(address, tmp_path, flags, wait=wait, environment=given))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()
        assert "never-logged" not in server.log.read_text()
        assert "Traceback" not in server.log.read_text()


def version_of(server, scene):
    answer = httpx.post(server.predict_url("digits"), content=scene)
    assert answer.status_code == 200, answer.text
    return answer.json()["version"]


@pytest.mark.parametrize("kind", ["web", "hub"])
def test_a_new_version_is_served(kind, web, folder, serve, demo_versions, scene):
    server = serve({"web": web.url, "hub": "hf://org/m@v1"}[kind], *POLL)
    assert version_of(server, scene) == "1"
    web.asked.clear()
    second = folder / ".2"
    shutil.copytree(demo_versions / "digits" / "2", second)
    second.rename(folder / "digits" / "2")
    wait_until(lambda: version_of(server, scene) == "2")
    pulled = [asked for asked in web.asked if asked.startswith("GET") and asked.endswith(".onnx")]
    assert not pulled, "version 1 has not changed"
    assert server.stop() == 0


def test_a_server_that_pulls_is_live_and_not_ready_and_can_be_stopped(web, serve, scene):
    web.open.clear()
    server = serve(web.url, wait=False)
    wait_until(lambda: any(asked.endswith("model.onnx") for asked in web.asked))
    ready = httpx.get(f"{server.url}/v1/health/ready")
    assert ready.status_code == 503
    assert "the repository is being pulled" in ready.text
    assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
    assert server.stop() == 0

    web.open.set()
    again = serve(web.url)
    assert version_of(again, scene) == "1"
    assert again.stop() == 0


def test_a_killed_server_leaves_nothing_that_is_half(web, serve, scene, tmp_path):
    web.open.clear()
    server = serve(web.url, wait=False)
    wait_until(lambda: any(asked.endswith("model.onnx") for asked in web.asked))
    server.process.kill()
    server.process.wait()
    [models] = (tmp_path / "cache").glob("*/models")
    assert not list(models.iterdir())
    web.open.set()
    assert version_of(serve(web.url), scene) == "1"
    assert not list(tmp_path.rglob("*.part"))


def test_a_page_that_is_no_index_is_refused(web, folder, fovea, monkeypatch, tmp_path):
    (folder / "index.html").write_text("<a href='/login'>log in</a>")
    code, _, err = fovea("serve", web.url, "--repository-cache", tmp_path / "cache")
    assert code == 2
    assert f"there is no model at {web.url} (NAME/VERSION/model.*)" in err


def test_a_model_that_is_refused_is_there_with_its_reason_until_it_is_sound(
    web, folder, serve, demo_versions, scene
):
    shutil.copytree(demo_versions / "digits" / "1", folder / "bad" / "1")
    card = folder / "bad" / "1" / "card.json"
    sound = card.read_text()
    card.write_text("{")
    server = serve(web.url, *POLL, "--strict-readiness=false")
    assert version_of(server, scene) == "1"
    answer = httpx.post(server.predict_url("bad"), content=scene)
    assert answer.status_code == 503
    assert "bad/1/card.json is not JSON" in answer.json()["error"]["message"]
    index = httpx.post(f"{server.url}/v2/repository/index", json={}).json()
    [entry] = [each for each in index if each["name"] == "bad"]
    assert entry["state"] == "UNAVAILABLE"
    assert "is not JSON" in entry["reason"]

    card.write_text(sound)
    wait_until(lambda: httpx.post(server.predict_url("bad"), content=scene).status_code == 200)
    assert server.stop() == 0
