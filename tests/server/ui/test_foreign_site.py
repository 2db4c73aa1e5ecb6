"""Pages of other sites attack a server on this machine, in a real browser."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from tests.serving import RunningServer

from .conftest import DEMO, REBOUND

pytestmark = pytest.mark.browser

SETUP = json.dumps({"project": "1", "schema": "<View/>", "hostname": "http://evil.example"})
# A file and a body as a page of any site may POST them without asking first.
ATTACKS = {
    "/v2/repository/models/digits/unload": "{}",
    "/v2/repository/models/digits/load": '{"parameters": {"config": "{}"}}',
    "/v2/logging": '{"log_info": false}',
    "/v2/trace/setting": '{"trace_level": ["TIMESTAMPS"]}',
    "/model/clear": "{}",
    "/setup": SETUP,
    "/v1/models/digits/predict": "image",
}
# Resolves when the answers have come, though none may be read.
POST = """
(attacks) => Promise.all(Object.entries(attacks).map(([url, body]) => fetch(url, {
    method: 'POST', mode: 'no-cors', headers: { 'Content-Type': 'text/plain' }, body,
})))
"""
# A form as text/plain: its one field makes JSON of "name=value".
FORM = """
([url, body]) => new Promise((resolve) => {
    const target = document.createElement('iframe');
    target.name = 'target';
    document.body.append(target);
    const form = document.createElement('form');
    Object.assign(form, { method: 'POST', action: url, enctype: 'text/plain', target: 'target' });
    const field = document.createElement('input');
    Object.assign(field, { name: body.slice(0, -1) + ', "x": "', value: '"}' });
    form.append(field);
    document.body.append(form);
    target.onload = () => resolve(target.remove());
    form.submit();
})
"""
FRAME = """
(url) => new Promise((resolve) => {
    const frame = document.createElement('iframe');
    frame.onload = resolve;
    frame.src = url;
    document.body.append(frame);
})
"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!doctype html><title>Another site</title><body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """The port of another web server on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def server(serve, demo_repository) -> RunningServer:
    return serve(
        demo_repository,
        "--model-control-mode=explicit",
        "--load-model=digits",
        "--api=label-studio",
        "--api=roboflow",
    )


def state(server: RunningServer) -> list[object]:
    paths = ("/v2/logging", "/v2/trace/setting", "/v2/models/digits/stats", "/v2/models/digits")
    return [httpx.get(server.url + path).json() for path in paths]


def logged(server: RunningServer, logger: str) -> list[str]:
    """What was said by a logger, once the server is gone."""
    assert server.stop() == 0
    return [line for line in server.log.read_text().splitlines() if f"{logger}:" in line]


# Of another port, which is the same site, and of another name, which is another one.
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nothing_that_another_page_posts_is_done(browser, site, server, host):
    before = state(server)
    page = browser.new_page()
    page.goto(f"http://{host}:{site}/")
    page.evaluate(POST, {server.url + path: body for path, body in ATTACKS.items()})
    for path in ("/v2/logging", "/setup", "/v2/repository/models/digits/unload"):
        page.evaluate(FORM, [server.url + path, ATTACKS[path]])
    page.close()
    assert state(server) == before
    refused = logged(server, "fovea_server.refused")
    assert f"http://{host}:{site}" in refused[0]
    assert "--cors-origin" in refused[0]
    done = [line for line in server.log.read_text().splitlines() if "POST '" in line]
    # The preflights of none of them were asked for.
    assert len(done) >= len(ATTACKS)
    assert all("status=403" in line for line in done if "fovea_server.access" in line)


def test_a_page_that_the_operator_names_may(browser, site, serve, demo_repository):
    origin = f"http://localhost:{site}"
    server = serve(demo_repository, f"--cors-origin={origin}")
    page = browser.new_page()
    page.goto(origin)
    page.evaluate(POST, {f"{server.url}/v2/logging": '{"log_warning": false}'})
    page.close()
    assert httpx.get(f"{server.url}/v2/logging").json()["log_warning"] is False
    [line] = logged(server, "fovea_server.control")
    assert f"POST '/v2/logging' by 127.0.0.1, from a page of '{origin}': 200" in line


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_no_page_can_frame_ours(browser, site, server, path):
    page = browser.new_page()
    page.goto(f"http://localhost:{site}/")
    page.evaluate(FRAME, server.url + path)
    [framed] = page.frames[1:]
    framed.wait_for_url(lambda url: url.startswith("chrome-error:"), wait_until="commit")
    page.close()


def test_a_name_of_an_attacker_that_leads_here(browser, server):
    before, own = state(server), f"http://{REBOUND}:{server.port}"
    page = browser.new_page()
    assert page.goto(f"{own}/").status == 403
    # For the browser it is a page of this server: it may read what is answered.
    answers = page.evaluate(
        """(attacks) => Promise.all(Object.entries(attacks).map(([url, body]) =>
            fetch(url, { method: 'POST', body }).then((answer) => answer.text())))""",
        {own + path: body for path, body in ATTACKS.items()},
    )
    answers += page.evaluate(
        "(urls) => Promise.all(urls.map((url) => fetch(url).then((answer) => answer.text())))",
        [own + path for path in ("/v1/models", "/v2", "/docs", "/openapi.json")],
    )
    assert len(answers) == len(ATTACKS) + 4
    assert all("--allowed-host" in answer and REBOUND in answer for answer in answers)
    assert page.goto(f"http://{REBOUND}:{server.metrics_port}/metrics").status == 403
    page.close()
    assert state(server) == before


def test_a_name_of_the_operator(browser, serve, demo_repository):
    server = serve(demo_repository, f"--allowed-host={REBOUND}")
    page = browser.new_page()
    errors: list[object] = []
    page.on("pageerror", lambda error: errors.append(error))
    assert page.goto(f"http://{REBOUND}:{server.port}/").status == 200
    page.set_input_files("#files", DEMO / "scene-1.jpg")
    page.locator("#found .row").first.wait_for()
    page.close()
    assert errors == []


def test_the_documentation_works_under_its_policy(browser, demo_server):
    page = browser.new_page()
    page.set_default_timeout(120_000)
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on("console", lambda said: said.type == "error" and broken.append(said.text))
    answer = page.goto(demo_server.url + "/docs")
    assert "unsafe" not in answer.headers["content-security-policy"].partition(";")[0]
    route = page.locator("#operations-models-list_models")
    route.locator(".opblock-summary-control").click()
    route.locator(".try-out__btn").click()
    route.locator("button.execute").click()
    answered = route.locator(".live-responses-table .highlight-code").first
    answered.filter(has_text='"digits"').wait_for()
    page.close()
    assert broken == []
