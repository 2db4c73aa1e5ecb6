"""The client in JavaScript, and the code that the page offers, run as they are copied."""

import os
import re
import subprocess
import sys

import httpx
import pytest
from tests.conftest import DEMO
from tests.keyed import key
from tests.serving import start_server
from tests.system import program
from tools.typescript import FILE, updated

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keyed(demo_repository, tmp_path_factory):
    """A server with a key."""
    folder = tmp_path_factory.mktemp("keys")
    secret = key("add", "page", "--keys", folder / "keys.json")
    server = start_server(demo_repository, folder, [f"--keys={folder / 'keys.json'}"])
    yield server, secret
    assert server.stop() == 0


def test_the_client_in_node(node, demo_server, keyed):
    server, secret = keyed
    addresses = {"OPEN": demo_server.url, "KEYED": server.url, "KEY": secret, "SCENES": str(DEMO)}
    node.test("client.test.js", addresses)


def asked(server, **given):
    plain = {"task": "detect", "conf": 0.25, "iou": 0.7, "tile": "", "overlap": 0.2, "labels": []}
    page = httpx.get(server.url, headers={"Accept": "text/html"}).text
    [wheel] = re.findall(r'name="fovea-client" content="([^"]+)"', page)
    about = {"url": server.url, "model": "digits", "file": "scene.jpg", "wheel": wheel}
    return {**plain, **about, "classes": [], "hasKey": False, **given}


ODD = "it's \"5\" o'clock.jpg"


@pytest.mark.parametrize("language", ["curl", "Python", "JavaScript"])
@pytest.mark.parametrize(
    "given",
    [
        {"conf": 0.6, "classes": [["1", 1], ["3", 3]]},
        {"tile": "2x2", "overlap": 0.4},
        {"version": "1", "file": ODD},
        {"hasKey": True},
    ],
    ids=["options", "tiles", "odd names", "a key"],
)
def test_copied_code_finds_what_the_page_shows(node, demo_server, keyed, tmp_path, language, given):
    server, secret = keyed if given.get("hasKey") else (demo_server, "")
    request = asked(server, **given)
    code = node.evaluate(
        "import('./snippets.js').then(({ WRITERS }) =>"
        " WRITERS[given[0]]({ ...given[1], classes: new Map(given[1].classes) }))",
        [language, request],
    )
    scene = (DEMO / "scene-1.jpg").read_bytes()
    (tmp_path / request["file"]).write_bytes(scene)
    if language == "curl":
        program("curl", package="curl")
        command = ["sh", "-c", code]
    elif language == "Python":
        # Its first line tells how to get the client.
        client = httpx.head(re.search(r"pip install (\S+)", code)[1])
        assert (client.status_code, client.headers["content-type"]) == (200, "application/zip")
        command = [sys.executable, "-W", "error", "-c", code]
    else:
        [address] = re.findall(r"curl -O (\S+)", code)
        (tmp_path / "fovea.js").write_text(httpx.get(address).text)
        (tmp_path / "found.mjs").write_text(code)
        command = [node.binary, "found.mjs"]
    environment = os.environ | {"FOVEA_API_KEY": secret}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    if language == "curl":
        found = re.findall(r'"score":([\d.]+),"class_id":\d+,"class_name":"(\w+)"', done.stdout)
        found = [(name, f"{float(score):.2f}") for score, name in found]
    else:
        found = re.findall(r"^(\w+) (\d\.\d\d) ", done.stdout, re.MULTILINE)
    options = {name: request[name] for name in ("conf", "tile") if name in given}
    options |= {"overlap": 0.4} if "tile" in given else {}
    options |= {"classes": "1,3"} if "classes" in given else {}
    answer = httpx.post(
        server.predict_url("digits"), content=scene, params=options, headers={"X-API-Key": secret}
    )
    wanted = answer.json()["images"][0]["detections"]
    assert found == [(each["class_name"], f"{each['score']:.2f}") for each in wanted]
    assert found
    assert ("FOVEA_API_KEY" in code) == bool(secret)


# What a developer writes; each line that `@ts-expect-error` stands before must be refused.
USED = """
import { Fovea, FoveaError, type Detection } from "./fovea.js";

const fovea = new Fovea(new URL("http://127.0.0.1:8000"), { headers: { key: "secret" } });
const onUpload = (share: number) => console.log(share.toFixed(2));

export async function names(image: Blob): Promise<(string | number)[]> {
  const options = { conf: 0.4, classes: ["cat", 3], tile: 640, timeoutMs: 2000, onUpload };
  const { images, timing_ms } = await fovea.predict("digits", image, options);
  const found: Detection[] = images.flatMap((each) => each.detections ?? []);
  const masks = found.map(({ mask }) => mask?.counts ?? timing_ms.total.toFixed(1));
  const { images: [{ matches }] } = await fovea.search("reid", image, { k: 3, index: "people" });
  const drawn: Blob = await fovea.annotate("digits", image, { mask: "polygon" });
  const { card } = await fovea.model((await fovea.models())[0].name, 1);
  return [...masks, ...(matches ?? []).map(({ score }) => score), drawn.type, card?.family ?? ""];
}

export const retry = (error: unknown) => error instanceof FoveaError ? error.retryAfterS : null;

// @ts-expect-error
fovea.predict("digits");
// @ts-expect-error
fovea.predict("digits", new Blob(), { confidence: 0.4 });
// @ts-expect-error
fovea.search("reid", new Blob(), { conf: 0.4 });
// @ts-expect-error
fovea.model("digits").then(({ box }) => box);
"""
# The code itself, which TypeScript reads under another name, has what the types say, and no more.
SAME = """
import * as code from "./code.js";
import * as types from "./fovea.js";

const made: Pick<types.Fovea, keyof types.Fovea> = new code.Fovea("http://127.0.0.1");
const failed: types.FoveaError = new code.FoveaError("late", { code: "late" });
const names: keyof types.Fovea = "" as keyof code.Fovea;
const classes: keyof typeof types = "" as keyof typeof code;
export default [made, failed, names, classes];
"""


def test_the_types_are_those_of_the_schemas(demo_server):
    text = httpx.get(demo_server.url + "/page/fovea.d.ts").text
    made = updated(text, httpx.get(demo_server.url + "/openapi.json").json())
    assert text == made, f"{FILE.name} is old: run `python -m tools.typescript`"


@pytest.mark.real
def test_the_types_are_those_of_the_code(demo_server, tmp_path):
    compiler = program("tsc", package="node-typescript")
    for name in ("fovea.js", "fovea.d.ts"):
        (tmp_path / name).write_bytes(httpx.get(f"{demo_server.url}/page/{name}").content)
    code = (tmp_path / "fovea.js").read_text()
    (tmp_path / "code.js").write_text(code)
    # A method more, or less, is named.
    (tmp_path / "renamed.js").write_text(code.replace(" ready(", " is("))
    (tmp_path / "used.ts").write_text(USED)
    (tmp_path / "same.ts").write_text(SAME)
    (tmp_path / "wrong.ts").write_text(SAME.replace("./code.js", "./renamed.js"))

    def check(*files: str) -> str:
        """The compiler's output; the declarations of the language are not checked."""
        flags = "--noEmit --strict --target es2022 --lib es2022,dom --skipDefaultLibCheck"
        loose = "--allowJs --checkJs false --noImplicitAny false"
        command = [compiler, *flags.split(), *(() if files == ("used.ts",) else loose.split())]
        return subprocess.run(
            [*command, *files], cwd=tmp_path, capture_output=True, text=True
        ).stdout

    assert check("used.ts") == ""
    found = check("same.ts", "wrong.ts")
    assert "'ready'" in found
    assert "same.ts" not in found
