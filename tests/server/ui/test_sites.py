"""Pages of other sites in a real browser: what they may not do, those that may, and proxies."""

import base64
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from tests.conftest import ROOT
from tests.docs.pages import ported
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


class Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hosted(handler) -> Iterator[int]:
    """Another web server on this machine; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text("<!doctype html><title>Another site</title><body>")
    with hosted(partial(Files, directory=folder)) as port:
        yield port


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
    assert state(server) == before
    # Nor can it frame our pages.
    for path in ("/", "/docs"):
        page.evaluate(FRAME, server.url + path)
        page.frames[-1].wait_for_url(
            lambda url: url.startswith("chrome-error:"), wait_until="commit"
        )
    page.close()
    refused = logged(server, "fovea_server.refused")
    assert f"http://{host}:{site}" in refused[0]
    assert "--cors-origin" in refused[0]
    done = [line for line in server.log.read_text().splitlines() if "POST '" in line]
    # The preflights of none of them were asked for.
    assert len(done) >= len(ATTACKS)
    assert all("status=403" in line for line in done if "fovea_server.access" in line)


def test_a_page_and_a_name_that_the_operator_allows(browser, site, serve, demo_repository):
    origin = f"http://localhost:{site}"
    server = serve(demo_repository, f"--cors-origin={origin}", f"--allowed-host={REBOUND}")
    page = browser.new_page()
    errors: list[object] = []
    page.on("pageerror", lambda error: errors.append(error))
    assert page.goto(f"http://{REBOUND}:{server.port}/").status == 200
    page.set_input_files("#files", DEMO / "scene-1.jpg")
    page.locator("#found .row").first.wait_for()
    page.goto(origin)
    page.evaluate(POST, {f"{server.url}/v2/logging": '{"log_warning": false}'})
    page.close()
    assert errors == []
    assert httpx.get(f"{server.url}/v2/logging").json()["log_warning"] is False
    [line] = logged(server, "fovea_server.control")
    assert f"POST '/v2/logging' by 127.0.0.1, from a page of '{origin}': 200" in line


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


# What a developer of a page may write besides the program of docs/reference/http.md.
ASK = """
async ([code, server, data]) => {
    const { Fovea } = await import(code);
    const fovea = new Fovea(server);
    const image = await (await fetch(`data:image/jpeg;base64,${data}`)).blob();
    try {
        const models = (await fovea.models()).map(({ name }) => name);
        const refused = await fovea.predict('yolov8n', image, { conf: 7 }).catch((error) => error);
        return [models, refused.status, refused.code];
    } catch ({ message, hint }) {
        return { message, hint };
    }
}
"""


def test_a_page_of_another_origin_uses_the_client(browser, serve, demo_repository, tmp_path):
    """The program of docs/reference/http.md works; without the flag it gets the reason."""
    repository, folder = tmp_path / "repository", tmp_path / "site"
    # The program names this model.
    shutil.copytree(demo_repository / "digits", repository / "yolov8n")
    config = repository / "yolov8n" / "config.pbtxt"
    config.write_text(config.read_text().replace('"digits"', '"yolov8n"'))
    text = (ROOT / "docs" / "reference" / "http.md").read_text()
    [block] = re.findall(r"^```js\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    folder.mkdir()
    (folder / "index.html").write_text('<!doctype html><input id="input" type="file">')
    shutil.copy(ROOT / "server/fovea_server/ui/fovea.js", folder)
    image = base64.b64encode((DEMO / "scene-1.jpg").read_bytes()).decode()
    with hosted(partial(Files, directory=folder)) as port:
        origin = f"http://127.0.0.1:{port}"
        server, closed = serve(repository, f"--cors-origin={origin}"), serve(repository)
        program = ported(block, {8000: server.port})
        (folder / "own.js").write_text(f"{program}\nwindow.found = images;\n")
        page = browser.new_page()
        page.goto(origin)
        page.set_input_files("#input", DEMO / "scene-1.jpg")
        page.evaluate("() => import('./own.js')")
        assert page.evaluate("() => found[0].detections.length") > 5
        # The client may be a copy, or be imported from the server itself.
        for code in ("./fovea.js", f"{server.url}/page/fovea.js"):
            answer = page.evaluate(ASK, [code, server.url, image])
            assert answer == [["yolov8n"], 422, "invalid_option"]
        answer = page.evaluate(ASK, ["./fovea.js", closed.url, image])
        assert answer["message"] == f"{closed.url} does not respond"
        assert f"`fovea serve --cors-origin {origin}`" in answer["hint"]
        page.close()


HOP = frozenset(("host", "content-length", "connection", "transfer-encoding", "content-encoding"))


@contextmanager
def proxied(server: RunningServer, prefix: str, headers: dict[str, str]) -> Iterator[str]:
    """A proxy that serves a server below a path, and cuts that off, as `location /vision/` does."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            given = {k: v for k, v in self.headers.items() if k.lower() not in HOP}
            url = server.url + self.path.removeprefix(prefix)
            answer = httpx.request(
                self.command, url, content=body, headers=given | headers, timeout=60
            )
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = handle_one  # noqa: N815 - names of the standard library

        log_message = Files.log_message

    with hosted(Handler) as port:
        yield f"http://127.0.0.1:{port}{prefix}"


@pytest.mark.parametrize("named", [False, True])
def test_the_documentation_sends_a_request_below_the_path_of_a_proxy(browser, page_server, named):
    headers = {"X-Forwarded-Prefix": "/vision"} if named else {}
    with proxied(page_server, "/vision", headers) as address:
        send_prefilled(browser, address)


def send_prefilled(browser, address):
    """Send each request of the page of documentation as it is there."""
    page = browser.new_page()
    page.set_default_timeout(120_000)
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on("console", lambda said: said.type == "error" and broken.append(said.text))
    answer = page.goto(f"{address}/docs")
    assert "unsafe" not in answer.headers["content-security-policy"].partition(";")[0]
    for operation in ("predict", "predict_json"):
        route = page.locator(f"#operations-predict-{operation}")
        route.locator(".opblock-summary-control").click()
        route.locator(".try-out__btn").click()
        if operation == "predict":
            route.locator("input[type=file]").set_input_files(DEMO / "scene-1.jpg")
        route.locator("button.execute").click()
        status = route.locator(".live-responses-table tbody .response-col_status").first
        status.wait_for()
        assert status.inner_text().split()[0] == "200", route.inner_text()
        sent = route.locator(".request-url pre").inner_text()
        assert sent == f"{address}/v1/models/digits/{operation.replace('_', '/')}"
    page.close()
    assert broken == []
