"""What is over a limit is told which limit that is, and which flag raises it."""

import http.client
import json
import re

import httpx
import pytest

pytestmark = pytest.mark.slow

PREDICT = "/v1/models/digits/predict"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--http-max-input-size=51200", "limit of 50 KiB: .* --http-max-input-size"),
        ("--max-image-mb=0.0625", "limit of 64 KiB: .* --max-image-mb"),
        ("--max-megapixels=0.25", r"\d+x\d+, over the limit of 0.25 megapixels: .* --max-megapix"),
    ],
)
def test_the_flag_is_named(demo_repository, serve, scene, flag, message):
    server = serve(demo_repository, flag)
    answer = httpx.post(server.url + PREDICT, content=scene)
    assert answer.status_code == 413
    told = answer.json()["error"]["message"]
    assert re.search(message, told), told


def test_the_default_is_told_in_round_numbers(demo_server):
    connection = http.client.HTTPConnection("127.0.0.1", demo_server.port, timeout=30)
    connection.putrequest("POST", PREDICT)
    connection.putheader("Content-Length", str(65 << 20))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    error = json.loads(answer.read())["error"]
    assert error["code"] == "body_too_large"
    assert error["message"].startswith("the body is over the limit of 64 MiB: ")
    assert error["message"].endswith("--http-max-input-size (bytes)")
    connection.close()
