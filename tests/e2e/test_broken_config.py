"""A config.pbtxt that does not parse: every answer about the model says where and why."""

import shutil

import grpc
import httpx
import pytest
import tritonclient.grpc as triton

pytestmark = pytest.mark.slow

BROKEN = 'max_batch_size: 4\ninput [\n  { name: "images" data_typ: TYPE_FP32 }\n]\n'
REASON = (
    "config.pbtxt is not a model configuration: line 3, column 20: "
    'Message type "inference.ModelInput" has no field named "data_typ"'
)


@pytest.fixture
def repository(demo_repository, tmp_path):
    repository = tmp_path / "repository"
    shutil.copytree(demo_repository / "digits", repository / "broken")
    (repository / "broken" / "config.pbtxt").write_text(BROKEN)
    return repository


def check_told(url: str) -> None:
    ready = httpx.get(f"{url}/v2/models/broken/ready")
    assert ready.status_code == 400
    assert ready.json()["reason"].endswith(REASON)
    [entry] = httpx.post(f"{url}/v2/repository/index").json()
    assert (entry["name"], entry["state"]) == ("broken", "UNAVAILABLE")
    assert entry["reason"].endswith(REASON)


def test_at_start(serve, repository):
    server = serve(repository, wait=False)
    check_told(server.url)
    assert REASON in httpx.get(f"{server.url}/v2/health/ready").json()["reason"]


def test_on_request(serve, repository):
    server = serve(repository, "--model-control-mode=explicit")
    loaded = httpx.post(f"{server.url}/v2/repository/models/broken/load")
    assert loaded.status_code == 500
    # Clients look for the text that Triton has.
    told = "failed to load 'broken', failed to poll from model repository: "
    assert loaded.json()["error"].startswith(told)
    assert loaded.json()["error"].endswith(REASON)
    check_told(server.url)
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        with pytest.raises(triton.InferenceServerException) as refusal:
            client.load_model("broken")
        assert refusal.value.message().endswith(REASON)
        assert refusal.value.status() == str(grpc.StatusCode.INTERNAL)
        assert client.get_model_repository_index().models[0].reason.endswith(REASON)
    # What requests load does not change the server's readiness; a file that is mended loads.
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    (repository / "broken" / "config.pbtxt").unlink()
    load = f"{server.url}/v2/repository/models/broken/load"
    assert httpx.post(load, timeout=60).status_code == 200
    [entry] = httpx.post(f"{server.url}/v2/repository/index").json()
    assert entry == {"name": "broken", "version": "1", "state": "READY"}
