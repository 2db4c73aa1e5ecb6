"""A repository in S3, served by a real server."""

import httpx
import pytest
from tests.load import Load, over_http
from tests.server.registries import adder, wait_until
from tests.serving import start_server
from tests.stores import Bucket, environment

pytestmark = pytest.mark.real

POLL = ("--model-control-mode=poll", "--repository-poll-secs=0.2", "--log-access=false")


@pytest.fixture
def bucket():
    bucket = Bucket()
    yield bucket
    bucket.stop()


@pytest.fixture
def serve(bucket, tmp_path):
    started = []

    def start(*flags, address=bucket.address, wait=True):
        cache = f"--repository-cache={tmp_path / 'cache'}"
        given = environment(**bucket.variables)
        flags = (cache, *flags)
        started.append(start_server(address, tmp_path, flags, wait=wait, environment=given))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()
        log = server.log.read_text()
        assert "never-logged" not in log
        assert "AKIDEXAMPLE" not in log
        assert "Traceback" not in log


def version_of(server, scene):
    answer = httpx.post(server.predict_url("digits"), content=scene)
    assert answer.status_code == 200, answer.text
    return answer.json()["version"]


def test_a_store_is_served_followed_lost_and_found_again(
    bucket, serve, demo_versions, scene, tmp_path
):
    bucket.upload(demo_versions / "digits" / "1", "digits/1")
    bucket.upload(adder(tmp_path / "adder", "plus", add=2), "plus")
    server = serve(*POLL)
    assert version_of(server, scene) == "1"

    bucket.upload(demo_versions / "digits" / "2", "digits/2")
    wait_until(lambda: version_of(server, scene) == "2")

    log = server.log.read_text
    assert log().count("MB of s3://") >= 1
    bucket.stop()
    wait_until(lambda: "cannot be read" in log())
    assert version_of(server, scene) == "2"
    assert server.stop() == 0

    offline = serve(*POLL)
    assert version_of(offline, scene) == "2"
    assert "serving the models of the last pull" in offline.log.read_text()

    bucket.start_again()
    bucket.remove("plus")
    wait_until(lambda: "model plus was removed from the repository" in offline.log.read_text())
    assert "can be read again" in offline.log.read_text()
    assert offline.stop() == 0


def test_a_store_that_vanishes_under_load_fails_no_request(bucket, serve, demo_versions):
    bucket.upload(demo_versions / "digits" / "1", "digits/1")
    server = serve(*POLL)
    log = server.log.read_text
    with Load(over_http(server.url)) as load:
        load.wait_for_more()
        bucket.stop()
        wait_until(lambda: "cannot be read" in log())
        load.wait_for_more()
        bucket.start_again()
        bucket.upload(demo_versions / "digits" / "2", "digits/2")
        wait_until(lambda: load.answered["2"])
        bucket.stop()
        load.wait_for_more()
    assert not load.failed, load.failed
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    assert server.stop() == 0


def test_a_damaged_upload_is_refused_and_the_old_version_stays(bucket, serve, demo_versions, scene):
    bucket.upload(demo_versions / "digits" / "1", "digits/1")
    server = serve(*POLL)
    bucket.put("digits/2/model.xml", b"half of it")
    bucket.put("digits/2/card.json", (demo_versions / "digits" / "2" / "card.json").read_bytes())
    wait_until(lambda: "model digits of s3://" in server.log.read_text())
    assert "rejected (its earlier copy is kept): " in server.log.read_text()
    assert version_of(server, scene) == "1"
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200

    bucket.upload(demo_versions / "digits" / "2", "digits/2")
    wait_until(lambda: version_of(server, scene) == "2")


def test_a_model_that_was_never_whole_keeps_the_server_unready(bucket, serve, demo_versions, scene):
    bucket.upload(demo_versions / "digits" / "1", "digits/1")
    bucket.put("broken/1/card.json", b"{}")
    server = serve(wait=False)
    wait_until(lambda: "1 model ready" in server.log.read_text())
    assert version_of(server, scene) == "1"
    ready = httpx.get(f"{server.url}/v1/health/ready")
    assert ready.status_code == 503
    assert "broken: broken/1/card.json" in ready.text


def test_models_that_are_loaded_on_request_are_pulled_then(bucket, serve, demo_versions, scene):
    bucket.upload(demo_versions / "digits" / "1", "digits/1")
    server = serve("--model-control-mode=explicit", "--load-model=digits")
    bucket.upload(demo_versions / "digits" / "2", "digits/2")
    asked = httpx.post(f"{server.url}/v2/repository/models/digits/load", timeout=60)
    assert asked.status_code == 200, asked.text
    assert version_of(server, scene) == "2"


def test_a_store_that_cannot_be_read_and_was_never_pulled_is_refused(
    bucket, fovea, monkeypatch, tmp_path
):
    for name, value in bucket.variables.items():
        monkeypatch.setenv(name, value)
    cache = ("--repository-cache", tmp_path / "cache")
    code, _, err = fovea("serve", bucket.address, *cache)
    assert code == 2
    assert f"there is no model at {bucket.address} (NAME/VERSION/model.*)" in err
    (tmp_path / "file").write_text("")
    code, _, err = fovea("serve", bucket.address, "--repository-cache", tmp_path / "file")
    assert code == 2
    assert "set --repository-cache to a folder" in err
    bucket.stop()
    code, _, err = fovea("serve", bucket.address, *cache)
    assert code == 1
    assert f"{bucket.address} cannot be read: " in err
    assert "never-logged" not in err
