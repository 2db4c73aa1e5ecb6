"""`stream` and `connect` of fovea.js, in a page and in Node."""

import base64
import json
import subprocess

import pytest
from tests.keyed import key
from tests.serving import start_server
from tests.system import program

from .conftest import DEMO

pytestmark = pytest.mark.browser

USE = """
async ({ Fovea }, server, apiKey, files) => {
    const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const frames = files.map((text) => new Blob([bytes(text)]));
    const fovea = new Fovea(server, { apiKey });
    const found = [];
    for await (const { images, error } of fovea.stream("digits", frames, { conf: 0.4 })) {
        found.push(error ? [error.status, error.code] : images[0].detections.length);
    }
    // A camera whose next frame waits for the answer to the one before.
    let told;
    async function* camera() {
        for (const frame of frames.slice(0, 1)) {
            const answered = new Promise((done) => { told = done; });
            yield frame;
            await answered;
        }
    }
    for await (const { images } of fovea.stream("digits", camera(), { track: "bytetrack" })) {
        found.push(images[0].detections.every((one) => "track_id" in one));
        told();
    }
    const line = await fovea.connect("digits");
    const twenty = await Promise.all(Array(20).fill(frames[0]).map((frame) => line.predict(frame)));
    found.push(twenty.map((one) => one.frame).join());
    line.close();
    const after = await line.predict(frames[0]).catch(({ code }) => code);
    const refused = [];
    for (const [client, model, options] of [
        [new Fovea(server, { apiKey: "wrong" }), "digits", {}],
        [fovea, "nobody", {}],
        [fovea, "digits", { conf: 7 }],
        [new Fovea("http://127.0.0.1:9"), "digits", {}],
    ]) {
        const error = await client.connect(model, options).catch((error) => error);
        refused.push([error.status, error.code]);
    }
    return { found, after, refused };
}
"""
FILES = [DEMO / "scene-1.jpg", DEMO / "scene-2.jpg"]


@pytest.fixture(scope="module")
def keyed(demo_repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    secret = key("add", "page", "--keys", folder / "keys.json")
    server = start_server(demo_repository, folder, [f"--keys={folder / 'keys.json'}"])
    yield server, secret
    assert server.stop() == 0


@pytest.fixture(scope="module")
def frames():
    data = [file.read_bytes() for file in FILES]
    return [base64.b64encode(each).decode() for each in (data[0], data[1][:900], data[1])]


def check(told):
    first, broken, second, ids, order = told["found"]
    assert (first > 5, broken, second > 5) == (True, [400, "invalid_image"], True)
    assert (ids, order) == (True, ",".join(map(str, range(20))))
    assert told["after"] == "connection_failed"
    refused = [[401, "unauthenticated"], [404, "not_found"], [422, "invalid_option"]]
    assert told["refused"] == [*refused, [0, "connection_failed"]]


def test_in_a_page(browser, keyed, frames):
    server, secret = keyed
    page = browser.new_page()
    page.goto(f"{server.url}/page/fovea.js")
    script = f"([given]) => import('/page/fovea.js').then((code) => ({USE})(code, ...given))"
    check(page.evaluate(script, [[server.url, secret, frames]]))
    page.close()


def test_in_node(keyed, frames, tmp_path):
    server, secret = keyed
    node = program("node", package="nodejs")
    given = json.dumps([server.url, secret, frames])
    (tmp_path / "run.mjs").write_text(
        f"const use = {USE};\nconst code = await import('./fovea.mjs');"
        f"console.log(JSON.stringify(await use(code, ...{given})));"
    )
    page = DEMO.parent / "ui"
    (tmp_path / "fovea.mjs").write_bytes((page / "fovea.js").read_bytes())
    plain = subprocess.run(
        [node, "run.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    if plain.returncode:
        # Before version 22 it is an experiment.
        assert "there is no WebSocket here" in plain.stderr
        command = [node, "--no-warnings", "--experimental-websocket", "run.mjs"]
        plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert plain.returncode == 0, plain.stderr
    check(json.loads(plain.stdout))
