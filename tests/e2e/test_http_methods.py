"""HEAD and OPTIONS wherever GET is answered; other methods are refused with those that are not."""

import http.client

import httpx
import pytest

from fovea_server.http.v1.schemas import ErrorAnswer

pytestmark = pytest.mark.slow

GETS = [
    "/",
    "/docs",
    "/openapi.json",
    "/static-offline-docs/swagger-ui.css",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/digits",
    "/v2/models/digits/ready",
    "/v2/models/nobody/ready",
    "/v2/models/nobody/config",
    "/v2/logging",
]
PREDICT, INFER = "/v1/models/digits/predict", "/v2/models/digits/infer"
STEADY = ("content-type", "content-length", "location", "etag")


def allowed(response: httpx.Response) -> set[str]:
    return set(response.headers["allow"].split(", "))


@pytest.mark.parametrize("path", GETS)
def test_head_is_get_without_the_body(demo_server, path):
    with httpx.Client(base_url=demo_server.url) as client:
        get = client.get(path)
        for _ in range(2):
            head = client.head(path)
            assert (head.status_code, head.content) == (get.status_code, b"")
            assert {name: head.headers.get(name) for name in STEADY} == {
                name: get.headers.get(name) for name in STEADY
            }


def test_no_body_comes_behind_head(demo_server):
    connection = http.client.HTTPConnection("127.0.0.1", demo_server.port, timeout=30)
    for path in GETS:
        # Bytes of a body would be taken for the beginning of the next answer.
        connection.request("HEAD", path)
        assert connection.getresponse().read() == b""
    connection.close()


@pytest.mark.parametrize("path", GETS)
def test_options_tells_the_methods(demo_server, path):
    response = httpx.options(demo_server.url + path)
    assert (response.status_code, response.content) == (200, b"")
    also = {"POST"} if path == "/v2/logging" else set()
    assert allowed(response) == {"GET", "HEAD", "OPTIONS"} | also


@pytest.mark.parametrize("path", [path for path in GETS if path != "/v2/logging"])
def test_a_405_tells_the_methods(demo_server, path):
    response = httpx.post(demo_server.url + path)
    assert response.status_code == 405
    assert allowed(response) == {"GET", "HEAD", "OPTIONS"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "PATCH"])
def test_what_is_for_post_alone(demo_server, method):
    predict = httpx.request(method, demo_server.url + PREDICT)
    infer = httpx.request(method, demo_server.url + INFER)
    assert [predict.status_code, infer.status_code] == [405, 405]
    assert [allowed(predict), allowed(infer)] == [{"POST"}, {"POST"}]
    if method != "HEAD":
        error = ErrorAnswer.model_validate(predict.json(), strict=True).error
        assert error.code == "method_not_allowed"
        assert error.message == f"{method} {PREDICT}: Method Not Allowed; send POST"
        assert infer.json() == {"error": "Method Not Allowed"}


def test_there_are_no_methods_of_nothing(demo_server):
    for path in ("/nowhere", "/v1/nowhere", "/v2/nowhere"):
        for method in ("HEAD", "OPTIONS"):
            assert httpx.request(method, demo_server.url + path).status_code == 404


def test_the_port_of_the_metrics(demo_server):
    for path in ("/metrics", "/other"):
        url = f"http://127.0.0.1:{demo_server.metrics_port}{path}"
        with httpx.Client() as client:
            get, head, options = client.get(url), client.head(url), client.options(url)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"] == get.headers["content-type"]
            assert (int(head.headers["content-length"]) > 0) == bool(get.content)
            assert (options.status_code, options.content) == (200, b"")
            refused = client.post(url, content=b"x")
        assert refused.status_code == 405
        assert allowed(options) == allowed(refused) == {"GET", "HEAD", "OPTIONS"}
