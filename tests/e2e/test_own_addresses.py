"""A server does not trust itself: what it fetches for clients is no program of its machine."""

import httpx
import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--url-allow-private", "start the server with --url-allow-host 127.0.0.1"),
        ("--url-allow-host=127.0.0.1", "the url answered with status 403"),
    ],
)
def test_an_address_of_the_server_itself_opens_nothing(serve, demo_repository, flag, told):
    server = serve(demo_repository, "--allow-url", flag)
    # Only programs of this machine may ask for the list.
    address = f"http://127.0.0.1:{server.port}/v1/models"
    assert httpx.get(address).status_code == 200
    answer = httpx.post(server.predict_url("digits"), json={"images": [{"url": address}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "fetch_refused")
    assert told in answer.text
