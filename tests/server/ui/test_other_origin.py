"""A page of another origin uses the server's own client, where the operator allows it."""

import base64
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from .conftest import DEMO

pytestmark = pytest.mark.browser

# What a developer of a web page writes.
ASK = """
async ([server, data]) => {
    const { Fovea } = await import('./fovea.js');
    const fovea = new Fovea(server);
    const image = await (await fetch(`data:image/jpeg;base64,${data}`)).blob();
    try {
        const { images: [found] } = await fovea.predict('digits', image, { timeoutMs: 60000 });
        const refused = await fovea.predict('digits', image, { conf: 7 }).catch((error) => error);
        return { found: found.detections.length, status: refused.status, text: refused.message };
    } catch ({ message, hint }) {
        return { message, hint };
    }
}
"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(demo_server, tmp_path) -> Iterator[str]:
    """The origin of a site of its own, which serves a copy of the client."""
    (tmp_path / "index.html").write_text("<!doctype html><title>Another site</title>")
    client = httpx.get(demo_server.url + "/page/fovea.js").content
    (tmp_path / "fovea.js").write_bytes(client)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def ask(browser, site: str, server: str) -> dict[str, object]:
    page = browser.new_page()
    page.goto(site)
    image = base64.b64encode((DEMO / "scene-1.jpg").read_bytes()).decode()
    answer = page.evaluate(ASK, [server, image])
    page.close()
    return answer


def test_a_page_of_another_origin_asks(browser, site, serve, demo_repository):
    server = serve(demo_repository, f"--cors-origin={site}")
    found = httpx.post(
        server.predict_url("digits"), content=(DEMO / "scene-1.jpg").read_bytes()
    ).json()["images"][0]["detections"]
    answer = ask(browser, site, server.url)
    assert answer["found"] == len(found) > 5
    assert (answer["status"], answer["text"]) == (422, "conf is 7.0; it must be from 0 to 1")
    # The client may also be imported from the server itself.
    page = browser.new_page()
    page.goto(site)
    models = page.evaluate(
        "(url) => import(`${url}/page/fovea.js`).then(({ Fovea }) => new Fovea(url).models())",
        server.url,
    )
    assert [model["name"] for model in models] == ["digits"]
    page.close()


def test_without_the_flag_the_browser_hides_the_answer(browser, site, demo_server):
    answer = ask(browser, site, demo_server.url)
    assert answer["message"] == f"{demo_server.url} does not answer"
    assert f"`fovea serve --cors-origin {site}`" in answer["hint"]
