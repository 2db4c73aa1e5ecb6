"""The documentation page: a request can be sent at once, also below the path of a proxy."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.serving import RunningServer

from .conftest import DEMO

pytestmark = pytest.mark.browser

HOP = frozenset(("host", "content-length", "connection", "transfer-encoding", "content-encoding"))


@contextmanager
def proxied(server: RunningServer, prefix: str, headers: dict[str, str]) -> Iterator[str]:
    """A proxy that serves a server below a path, and cuts that off, as `location /vision/` does."""

    class Handler(http.server.BaseHTTPRequestHandler):
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

        def log_message(self, *_: object) -> None:
            """Write no log."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_port}{prefix}"
        proxy.shutdown()
        thread.join()


@pytest.fixture(params=["alone", "below a path", "below a path that is named"])
def address(request, page_server) -> Iterator[str]:
    if request.param == "alone":
        yield page_server.url
        return
    named = {"X-Forwarded-Prefix": "/vision"} if "named" in request.param else {}
    with proxied(page_server, "/vision", named) as url:
        yield url


def test_a_request_is_sent_as_the_page_prefills_it(browser, address):
    page = browser.new_page()
    page.set_default_timeout(120_000)
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on("console", lambda said: said.type == "error" and broken.append(said.text))
    page.goto(f"{address}/docs")
    for operation in ("predict", "predict_json"):
        route = page.locator(f"#operations-predict-{operation}")
        route.locator(".opblock-summary-control").click()
        route.locator(".try-out__btn").click()
        if operation == "predict":
            route.locator("input[type=file]").set_input_files(DEMO / "scene-1.jpg")
        route.locator("button.execute").click()
        answered = route.locator(".live-responses-table tbody .response-col_status").first
        answered.wait_for()
        assert answered.inner_text().split()[0] == "200", route.inner_text()
        sent = route.locator(".request-url pre").inner_text()
        assert sent == f"{address}/v1/models/digits/{operation.replace('_', '/')}"
    page.close()
    assert broken == []


def test_the_document_names_the_path_of_a_proxy(page_server, serve, demo_repository):
    def servers(url: str, **headers: str) -> object:
        answer = httpx.get(f"{url}/openapi.json", headers=headers)
        return answer.json().get("servers")

    prefix = "X-Forwarded-Prefix"
    assert servers(page_server.url) is None
    assert servers(page_server.url, **{prefix: "/vision/"}) == [{"url": "/vision"}]
    for wrong in ("//evil.example", "http://evil.example", "/a b", "vision"):
        assert servers(page_server.url, **{prefix: wrong}) is None
    server = serve(demo_repository, "--root-path=/eyes")
    assert servers(server.url) == servers(server.url, **{prefix: "/x"}) == [{"url": "/eyes"}]
