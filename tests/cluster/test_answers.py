"""Answers of a front are those of `fovea serve`."""

import json

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.serving import start_server
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.cluster

# They differ from one answer to the next.
OF_THE_SERVER = {"date", "server", "x-request-id", "connection", "transfer-encoding"}

TENSORS = json.dumps(
    {
        "inputs": [
            {
                "name": "images",
                "datatype": "FP32",
                "shape": [1, 3, 320, 320],
                "data": [0.5] * (3 * 320 * 320),
            }
        ]
    }
).encode()
BOUNDARY = b"--x\r\nContent-Disposition: form-data; name=image\r\n\r\n"


@pytest.fixture(scope="module")
def served(cluster, tmp_path_factory, demo_repository):
    """The same repository on the cluster and by `fovea serve`."""
    done = cluster.deploy(repository=str(demo_repository), settings={"max_image_mb": 1.0})
    assert done.returncode == 0, done.stderr
    assert f"Serving at http://{cluster.host}:{cluster.port}" in done.stdout
    flags = ("--max-image-mb=1", "--model-control-mode=poll", "--no-keys")
    server = start_server(demo_repository, tmp_path_factory.mktemp("serve"), flags)
    yield cluster, server
    assert server.stop() == 0


def asked(scene: bytes) -> dict[str, tuple[str, str, dict[str, str], bytes]]:
    predict = "/v1/models/digits/predict"
    form = BOUNDARY + scene + b"\r\n--x--\r\n"
    return {
        "image": ("POST", predict, {}, scene),
        "options": ("POST", f"{predict}?conf=0.9&classes=5", {}, scene),
        "a version": ("POST", "/v1/models/digits/versions/1/predict", {}, scene),
        "no version": ("POST", "/v1/models/digits/versions/7/predict", {}, scene),
        "a form": ("POST", predict, {"content-type": "multipart/form-data; boundary=x"}, form),
        "drawn": ("POST", predict, {"accept": "image/jpeg"}, scene),
        "an address for forms": (
            "POST",
            f"{predict}/form",
            {"content-type": "multipart/form-data; boundary=x"},
            form,
        ),
        "an address for JSON": ("POST", f"{predict}/json", {}, b'{"images": []}'),
        "an address that draws": ("POST", "/v1/models/digits/annotate", {}, scene),
        "no image": ("POST", predict, {}, b"nothing"),
        "too large": ("POST", predict, {}, bytes(2 << 20)),
        "no body": ("POST", predict, {}, b""),
        "a wrong option": ("POST", f"{predict}?conf=2", {}, scene),
        "a wrong deadline": ("POST", predict, {"x-request-timeout-ms": "soon"}, scene),
        "no model": ("POST", "/v1/models/digit/predict", {}, scene),
        "a wrong method": ("GET", predict, {}, b""),
        "tensors": ("POST", "/v2/models/digits/infer", {}, TENSORS),
        "wrong tensors": ("POST", "/v2/models/digits/infer", {}, b'{"inputs": []}'),
        "no model in v2": ("POST", "/v2/models/digit/infer", {}, TENSORS),
        "models": ("GET", "/v1/models", {}, b""),
        "model": ("GET", "/v1/models/digits", {}, b""),
        "metadata": ("GET", "/v2/models/digits", {}, b""),
        "configuration": ("GET", "/v2/models/digits/config", {}, b""),
        "index": ("POST", "/v2/repository/index", {}, b""),
        "load": ("POST", "/v2/repository/models/digits/load", {}, b""),
        "ready": ("GET", "/v2/health/ready", {}, b""),
        "model ready": ("GET", "/v1/models/digits/ready", {}, b""),
        "server": ("GET", "/v2", {}, b""),
        "page": ("GET", "/", {"accept": "text/html"}, b""),
        "script": ("GET", "/page/fovea.js", {"accept-encoding": "gzip"}, b""),
        "openapi": ("GET", "/openapi.json", {}, b""),
        "documentation": ("GET", "/docs", {}, b""),
        "head": ("HEAD", "/v1/models", {}, b""),
        "nothing": ("GET", "/nowhere", {}, b""),
    }


@pytest.mark.parametrize("case", asked(b""))
def test_http(served, scene, case):
    method, path, headers, body = asked(scene)[case]
    through, direct = (
        httpx.request(method, f"{base.url}{path}", headers=headers, content=body, timeout=60)
        for base in served
    )
    assert told(through) == told(direct)
    assert "x-request-id" in through.headers


def told(answer: httpx.Response) -> tuple[int, dict[str, str], object]:
    headers = {k: v for k, v in answer.headers.items() if k not in OF_THE_SERVER}
    body: object = answer.content
    if "json" in headers.get("content-type", "") and answer.content:
        body = answer.json()
        if "timing_ms" in body:
            del body["timing_ms"], headers["content-length"]
    return answer.status_code, headers, body


def test_the_id_of_a_client_is_kept(served):
    cluster, _ = served
    answer = httpx.get(f"{cluster.url}/v1/models", headers={"x-request-id": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]


def test_counters_are_those_of_all_replicas(served, scene):
    cluster, _ = served
    url = f"{cluster.url}/v1/models/digits"

    def count() -> int:
        versions = httpx.get(f"{url}/statistics").json()["versions"]
        return sum(version["inference_count"] for version in versions)

    before = count()
    for _ in range(3):
        assert httpx.post(f"{url}/predict", content=scene).status_code == 200
    assert count() == before + 3
    every = httpx.get(f"{cluster.url}/v2/models/stats").json()["model_stats"]
    assert [each["inference_count"] for each in every] == [count()]


def image_input(scene: bytes) -> triton.InferInput:
    image = triton.InferInput("images", [1], "BYTES")
    image.set_data_from_numpy(np.array([scene], dtype=object))
    return image


def test_grpc(served, scene):
    cluster, server = served
    found = []
    for where in (f"{cluster.host}:{cluster.grpc_port}", f"127.0.0.1:{server.grpc_port}"):
        with triton.InferenceServerClient(where) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("digits")
            assert not client.is_model_ready("digit")
            result = client.infer("digits", [image_input(scene)], request_id="7")
            tensor = triton.InferInput("images", [1, 3, 320, 320], "FP32")
            tensor.set_data_from_numpy(np.full((1, 3, 320, 320), 0.5, np.float32))
            raw = client.infer("digits", [tensor])
            found.append(
                [
                    str(client.get_server_metadata()),
                    str(client.get_model_metadata("digits")),
                    str(client.get_model_config("digits")),
                    str(client.get_model_repository_index()),
                    result.get_response().id,
                    result.as_numpy("boxes").tolist(),
                    raw.as_numpy("output0").tobytes(),
                    refused(client.infer, "digit", [tensor]),
                    refused(client.infer, "digits", [image_input(b"nothing")]),
                    refused(client.load_model, "digits"),
                ]
            )
    assert found[0] == found[1]


def refused(call, *given) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as error:
        call(*given)
    return error.value.status(), error.value.message()


def test_grpc_counts(served, scene):
    cluster, _ = served
    with triton.InferenceServerClient(f"{cluster.host}:{cluster.grpc_port}") as client:
        before = client.get_inference_statistics("digits").model_stats[0].inference_count
        client.infer("digits", [image_input(scene)])
        assert client.get_inference_statistics().model_stats[0].inference_count == before + 1


def test_a_stream_of_grpc(served, scene):
    cluster, _ = served
    answers = []
    with triton.InferenceServerClient(f"{cluster.host}:{cluster.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        for number in range(5):
            client.async_stream_infer("digits", [image_input(scene)], request_id=str(number))
        client.async_stream_infer("digit", [image_input(scene)], request_id="5")
        client.stop_stream()
    assert [result.get_response().id for result, _ in answers[:5]] == ["0", "1", "2", "3", "4"]
    assert "'digit' is not found" in answers[5][1].message()
