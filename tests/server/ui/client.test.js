// Tests the client in Node. pytest starts two servers, one with keys, and passes their addresses in the
// environment.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import test from "node:test";

import { Fovea, FoveaError } from "../../../server/fovea_server/ui/fovea.js";

const { OPEN, KEYED, KEY, SCENES } = process.env;
const here = { skip: !OPEN && "pytest starts the servers" };
const lines = { skip: here.skip || (!globalThis.WebSocket && "Node has WebSockets from version 22 on") };
const fovea = new Fovea(`${OPEN}/`);
const keyed = new Fovea(KEYED, { apiKey: KEY });
const scene = (number) => readFile(`${SCENES}/scene-${number}.jpg`);

test("models, what is found, and pictures", here, async () => {
  const image = await scene(1);
  assert.deepEqual([await fovea.ready(), await fovea.ready("digits"), await fovea.ready("nobody")], [true, true, false]);
  assert.deepEqual((await fovea.models()).map(({ name }) => name), ["digits"]);
  assert.equal((await fovea.model("digits", 1)).labels.length, 10);
  const answer = await fetch(`${OPEN}/v1/models/digits/predict?conf=0.6&classes=1,2`, { method: "POST", body: image });
  const { images } = await fovea.predict("digits", image, { conf: 0.6, classes: [1, 2] });
  assert.deepEqual(images, (await answer.json()).images);
  assert.ok(images[0].detections.length);
  assert.equal((await fovea.predict("digits", [image, new Blob([image])], { version: 1 })).images.length, 2);
  assert.ok((await fovea.statistics("digits")).durations["+Inf"] >= 3);
  const drawn = await fovea.annotate("digits", image);
  assert.ok(drawn.type === "image/jpeg" && drawn.size > 1000);
  assert.deepEqual([await fovea.streams(), await fovea.key()], [[], null]);
  assert.deepEqual((await keyed.key()).scopes, ["predict"]);
});

for (const [name, ask, status, code, words] of [
  ["a model that is not there", (image) => fovea.predict("digit", image), 404, "not_found", /digits/],
  ["an option", (image) => fovea.predict("digits", image, { conf: 7 }), 422, "invalid_option", /7/],
  ["classes with commas, and null for none", (image) => fovea.predict("digits", image, { conf: null, classes: ["1", 'a,"b'] }),
    422, "invalid_option", /a,"b/],
  ["a stream", () => fovea.streamImage("door"), 404, "not_found", /door/],
  ["a wrong key", () => new Fovea(KEYED, { apiKey: "wrong" }).models(), 401, "unauthenticated", /key/],
  ["a server that is not there", () => new Fovea("http://127.0.0.1:9").models(), 0, "connection_failed", /127/],
]) {
  test(`an error about ${name}`, here, async () => {
    const error = await ask(await scene(1)).catch((error) => error);
    assert.ok(error instanceof FoveaError);
    assert.deepEqual([error.status, error.code], [status, code]);
    assert.match(error.message, words);
    assert.equal(Boolean(error.hint), status === 0);
  });
}

test("a request is given up by its signal, and not as an error of the server", here, async () => {
  const ask = (signal) => fovea.predict("digits", Buffer.from("x"), { signal });
  await assert.rejects(ask(AbortSignal.abort()), { name: "AbortError" });
  await assert.rejects(ask(AbortSignal.timeout(0)), { name: "TimeoutError" });
});

test("headers are sent with those of the client, and a wait that a server asks for is told", async () => {
  const server = createServer((request, answer) => {
    const { secret, accept, authorization } = request.headers;
    answer.writeHead(429, { "retry-after": "7" });
    answer.end(JSON.stringify({ error: { code: "busy", message: [secret, accept, authorization].join() } }));
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const url = `http://127.0.0.1:${server.address().port}`;
  const error = await new Fovea(url, { apiKey: "k", headers: { secret: "s" } }).predict("m", "x").catch((error) => error);
  server.close();
  assert.deepEqual([error.message, error.code, error.retryAfterS], ["s,application/json,Bearer k", "busy", 7]);
  assert.match(error.hint, /7 s/);
});

test("frames are answered in order over one connection", lines, async () => {
  const [first, second] = [await scene(1), await scene(2)];
  const found = [];
  for await (const { images, error } of keyed.stream("digits", [first, second.subarray(0, 900), second], { conf: 0.4 })) {
    found.push(error ? [error.status, error.code] : images[0].detections.length > 5);
  }
  assert.deepEqual(found, [true, [400, "invalid_image"], true]);
  const line = await keyed.connect("digits");
  const twenty = await Promise.all(Array(20).fill(first).map((frame) => line.predict(frame)));
  assert.deepEqual(twenty.map(({ frame }) => frame), [...Array(20).keys()]);
  line.close();
  await assert.rejects(line.predict(first), { code: "connection_failed" });
});

test("an answer does not wait for the next frame of a camera", lines, async () => {
  const frame = await scene(1);
  let told;
  async function* camera() {
    const answered = new Promise((done) => { told = done; });
    yield frame;
    await answered;
  }
  const found = [];
  for await (const { images } of keyed.stream("digits", camera(), { track: "bytetrack" })) {
    found.push(images[0].detections.every((each) => "track_id" in each));
    told();
  }
  assert.deepEqual(found, [true]);
});

test("a connection that is refused has the reason", lines, async () => {
  for (const [client, model, options, status, code] of [
    [new Fovea(KEYED, { apiKey: "wrong" }), "digits", {}, 401, "unauthenticated"],
    [keyed, "nobody", {}, 404, "not_found"],
    [keyed, "digits", { conf: 7 }, 422, "invalid_option"],
    [new Fovea("http://127.0.0.1:9"), "digits", {}, 0, "connection_failed"],
  ]) {
    await assert.rejects(client.connect(model, options), { status, code });
  }
});
