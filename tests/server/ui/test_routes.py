"""The page's files over HTTP, and the client in them under Node."""

import re
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.system import program

import fovea_server.ui as page

pytestmark = pytest.mark.browser

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_gets_the_page_and_programs_name_and_version(demo_server):
    page = httpx.get(demo_server.url, headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Fovea</title>" in page.text
    assert httpx.get(demo_server.url, headers={"Accept": "TEXT/HTML"}).text == page.text
    for accept in ("*/*", "application/json", "text/html;q=0, */*"):
        answer = httpx.get(demo_server.url, headers={"Accept": accept})
        assert answer.headers["content-type"] == "application/json"
        assert (answer.status_code, answer.json()["name"]) == (200, "fovea")


def test_files_are_sent_once(demo_server):
    url = demo_server.url + "/page/page.js"
    first, plain = httpx.get(url), httpx.get(url, headers={"Accept-Encoding": "identity"})
    assert first.headers["content-type"].startswith("text/javascript")
    assert first.text == plain.text
    assert int(first.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    again = httpx.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert httpx.get(demo_server.url + "/page/routes.py").status_code == 404


def test_nothing_is_loaded_from_elsewhere(demo_server):
    policy = httpx.get(demo_server.url, headers=HTML).headers["content-security-policy"]
    sources = {source for rule in policy.split(";") for source in rule.split()[1:]}
    assert sources == {"'none'", "'self'", "blob:", "data:"}


def test_it_can_be_switched_off(serve, demo_repository):
    server = serve(demo_repository, "--no-page")
    assert httpx.get(server.url + "/page/fovea.js").status_code == 404
    assert httpx.get(server.url, headers=HTML).headers["content-type"] == "application/json"
    assert httpx.get(server.url + "/v1/models").status_code == 200


NODE = """
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { Fovea, FoveaError } from "./fovea.js";

const [url, file] = process.argv.slice(2);
const fovea = new Fovea(url + "/");
const image = await readFile(file);
const failure = (promise) => promise.then(() => null, (error) => [
  error instanceof FoveaError, error.status, error.code, error.message, error.hint,
]);
const header = () => new Promise((resolve) => {
  const server = createServer((request, answer) => {
    resolve([request.headers.secret, request.headers.accept, request.headers.authorization]);
    answer.end("{}");
    server.close();
  });
  server.listen(0, () => {
    const url = `http://127.0.0.1:${server.address().port}`;
    new Fovea(url, { apiKey: "k", headers: { secret: "s" } }).predict("m", image);
  });
});
const drawn = await fovea.annotate("digits", image);
console.log(JSON.stringify({
  ready: [await fovea.ready(), await fovea.ready("digits"), await fovea.ready("nobody")],
  models: (await fovea.models()).map(({ name }) => name),
  labels: (await fovea.model("digits", 1)).labels.length,
  one: (await fovea.predict("digits", image, { conf: 0.6, classes: [1, 2] })).images,
  two: (await fovea.predict("digits", [image, new Blob([image])], { version: 1 })).images.length,
  counted: (await fovea.statistics("digits")).durations["+Inf"],
  drawn: [drawn.type, drawn.size > 1000],
  streams: [await fovea.streams(), await fovea.key()],
  stream: await failure(fovea.streamImage("door")),
  unknown: await failure(fovea.predict("digit", image)),
  option: await failure(fovea.predict("digits", image, { conf: 7 })),
  nobody: await failure(new Fovea("http://127.0.0.1:9").models()),
  named: await failure(fovea.predict("digits", image, { conf: null, classes: ["1", 'a,"b'] })),
  secret: await header(),
  timeout: await fovea.predict("digits", image, { signal: AbortSignal.timeout(0) })
    .catch(({ name }) => name),
  late: await failure(fovea.predict("digits", image, { signal: AbortSignal.abort() })),
}));
"""


@pytest.fixture(scope="module")
def told(demo_server, scene, tmp_path_factory) -> dict:
    node, folder = program("node", package="nodejs"), tmp_path_factory.mktemp("node")
    (folder / "fovea.js").write_bytes(httpx.get(demo_server.url + "/page/fovea.js").content)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "ask.js").write_text(NODE)
    (folder / "scene.jpg").write_bytes(scene)
    done = subprocess.run(
        [node, "ask.js", demo_server.url, "scene.jpg"], cwd=folder, capture_output=True, check=True
    )
    return httpx.Response(200, content=done.stdout).json()


def test_the_client_in_node(told, demo_server, scene):
    assert told["ready"] == [True, True, False]
    assert told["models"] == ["digits"]
    assert told["labels"] == 10
    url = demo_server.predict_url("digits") + "?conf=0.6&classes=1,2"
    assert told["one"] == httpx.post(url, content=scene).json()["images"]
    assert told["one"][0]["detections"]
    assert told["two"] == 2
    assert told["counted"] >= 3
    assert told["drawn"] == ["image/jpeg", True]
    assert told["streams"] == [[], None]


def test_the_errors_of_the_client(told):
    assert told["unknown"][:3] == [True, 404, "not_found"]
    assert "digits" in told["unknown"][3]
    assert told["option"] == [
        True,
        422,
        "invalid_option",
        "conf is 7.0; it must be from 0 to 1",
        "",
    ]
    assert told["nobody"][:3] == [True, 0, "connection_failed"]
    assert "is the server running" in told["nobody"][4]
    assert told["late"][0] is False
    assert told["stream"][:3] == [True, 404, "not_found"]
    assert told["timeout"] == "TimeoutError"
    assert 'a,"b' in told["named"][3]


def test_headers_of_the_client_are_sent_with_its_own(told):
    assert told["secret"] == ["s", "application/json", "Bearer k"]


def test_the_client_is_one_small_file(demo_server):
    client = httpx.get(demo_server.url + "/page/fovea.js")
    assert len(client.content) < 15_000
    assert "import " not in client.text.partition("*/")[2]
    types = httpx.get(demo_server.url + "/page/fovea.d.ts")
    assert types.headers["content-type"] == "text/plain; charset=utf-8"


def test_scripts_are_sent_without_comments_but_the_client_as_it_is(demo_server):
    folder = Path(page.__file__).parent
    client = httpx.get(f"{demo_server.url}/page/fovea.js").text
    assert client == (folder / "fovea.js").read_text()
    for name in ("page.js", "page.css"):
        sent = httpx.get(f"{demo_server.url}/page/{name}").text
        assert not re.search(r"^\s*(//|/\*)|^ ", sent, re.MULTILINE)
        assert len(sent) > 0.6 * (folder / name).stat().st_size


# Loaded when the tab of streams is first shown, and when the camera, a pipeline, a card or a
# network of vectors is.
LATER = {
    *("lines.js", "streams.js", "streams.html", "streams.css", "streamlist.js", "player.js"),
    *("events.js", "shapes.js", "crops.js", "camera.js", "opened.js"),
    "similar.js",
}


def test_the_page_is_small(demo_server):
    """All that a browser loads, compressed as it is sent; the types are for programmers."""
    folder = Path(page.__file__).parent
    kinds = (".js", ".css", ".svg", ".html")
    names = {path.name for path in folder.iterdir() if path.suffix in kinds}

    def sent(names):
        answers = [httpx.get(f"{demo_server.url}/page/{name}") for name in names]
        return sum(int(answer.headers["content-length"]) for answer in answers)

    index = int(httpx.get(demo_server.url, headers=HTML).headers["content-length"])
    assert index + sent(names - LATER - {"index.html"}) < 50_000
    assert names > LATER
    assert sent(LATER) < 12_500
