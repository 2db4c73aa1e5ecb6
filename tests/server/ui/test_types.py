"""The types of fovea.js are those of the server's own schemas, and of the code."""

import subprocess

import httpx
import pytest
from tests.system import program
from tools.typescript import FILE, updated

pytestmark = pytest.mark.browser

# What a developer writes; each line that `@ts-expect-error` stands before must be refused.
USED = """
import { Fovea, FoveaError, type Detection, type PredictOptions } from "./fovea.js";

const options: PredictOptions = { conf: 0.4, classes: ["cat", 3], tile: 640, timeoutMs: 2000 };
options.onUpload = (share) => console.log(share.toFixed(2));
const fovea = new Fovea(new URL("http://127.0.0.1:8000"), { headers: { key: "secret" } });

export async function names(image: Blob): Promise<string[]> {
  const { images, timing_ms } = await fovea.predict("digits", image, options);
  const found: Detection[] = images.flatMap((each) => each.detections ?? []);
  const total: number = timing_ms.total;
  const masks = found.map(({ mask }) => mask?.counts ?? total.toFixed(1));
  const [model] = await fovea.models();
  const card = (await fovea.model(model.name, 1)).card;
  const answered: number | undefined = (await fovea.statistics("digits")).durations["+Inf"];
  const { images: [{ matches }] } = await fovea.search("reid", image, { k: 3, index: "people" });
  masks.push(...(matches ?? []).map((each) => `${each.name} ${each.score.toFixed(2)}`));
  const drawn: Blob = await fovea.annotate("digits", image, { mask: "polygon" });
  return [...masks, String(answered), drawn.type, card?.family ?? "", String(await fovea.ready())];
}

export const retry = (error: unknown) => error instanceof FoveaError ? error.retryAfterS : null;

// @ts-expect-error
fovea.predict("digits");
// @ts-expect-error
fovea.predict("digits", new Blob(), { confidence: 0.4 });
// @ts-expect-error
fovea.search("reid", new Blob(), { conf: 0.4 });
// @ts-expect-error
fovea.annotate("digits", new Blob(), { mask: "svg" });
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


@pytest.fixture
def tsc(demo_server, tmp_path):
    """Check a program beside the client, as the server has both; gives what the compiler says."""
    compiler = program("tsc", package="node-typescript")
    for name in ("fovea.js", "fovea.d.ts"):
        (tmp_path / name).write_bytes(httpx.get(f"{demo_server.url}/page/{name}").content)

    def check(text: str, *flags: str) -> str:
        (tmp_path / "program.ts").write_text(text)
        options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom"]
        # The declarations of the language are not what is checked.
        command = [compiler, *options, "--skipDefaultLibCheck", *flags, "program.ts"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode == 0) == (done.stdout == ""), done.stderr
        return done.stdout

    return check


def test_the_types_are_those_of_the_schemas(demo_server):
    text = httpx.get(demo_server.url + "/page/fovea.d.ts").text
    made = updated(text, httpx.get(demo_server.url + "/openapi.json").json())
    assert text == made, f"{FILE.name} is old: run `python -m tools.typescript`"


def test_a_typed_program(tsc):
    assert tsc(USED) == ""


def test_the_types_are_those_of_the_code(tsc, tmp_path):
    code = (tmp_path / "fovea.js").read_text()
    (tmp_path / "code.js").write_text(code)
    # A method more, or less, is told.
    (tmp_path / "renamed.js").write_text(code.replace(" ready(", " is("))
    (tmp_path / "wrong.ts").write_text(SAME.replace("./code.js", "./renamed.js"))
    loose = ("--allowJs", "--checkJs", "false", "--noImplicitAny", "false")
    said = tsc(SAME, *loose, "wrong.ts")
    assert "'ready'" in said
    assert "program.ts" not in said
