// Tests the list of models, their engine cards and their example images.

import assert from "node:assert/strict";
import test from "node:test";

import { cardRows } from "../../../server/fovea_server/ui/card.js";
import { choicesOf, firstChoice, rivalOf, someAbsent } from "../../../server/fovea_server/ui/choices.js";
import { examplesOf } from "../../../server/fovea_server/ui/examples.js";

function model(name, task, versions = [["1", true]], ready = true) {
  return {
    name, task, ready,
    accepts_images: task !== "tensors",
    version: versions.at(-1)[0],
    versions: versions.map(([version, loaded]) => ({ version, ready: loaded, state: loaded ? "READY" : "UNAVAILABLE" })),
    label_count: 3,
  };
}

const MODELS = [
  model("a", "depth"),
  model("b", "tensors"),
  model("c", "detect", [["1", true], ["2", true]]),
  model("d", "segment"),
  model("e", null, [["1", true]], false),
  model("f", "detect", [["1", false], ["3", true]]),
];

test("models are grouped by task, and those that cannot be picked come last with the reason", () => {
  const choices = choicesOf(MODELS);
  assert.deepEqual(choices.map(({ group, id, reason }) => [group, id, reason]), [
    ["Object detection", "c", null],
    ["Object detection", "c, version 1", null],
    ["Object detection", "f", null],
    ["Instance segmentation", "d", null],
    ["Depth estimation", "a", null],
    ["Not available", "b", "accepts tensors, not images"],
    ["Not available", "e", "not ready"],
  ]);
  assert.equal(firstChoice(choices).id, "c");
});

test("versions that are not loaded are offered to who may load them, and never first", () => {
  assert.ok(someAbsent(MODELS));
  assert.ok(!someAbsent(MODELS.slice(0, 5)));
  const choices = choicesOf([MODELS[5]], true);
  assert.deepEqual(choices.map(({ id, load }) => [id, load]), [["f", false], ["f, version 1", true]]);
  assert.equal(firstChoice(choices.slice(1)), undefined);
});

test("a model is compared with another version, else the same task, else anything", () => {
  const choices = choicesOf(MODELS);
  const rivals = choices.slice(0, 5).map((each) => rivalOf(each, choices).id);
  assert.deepEqual(rivals, ["c, version 1", "c", "c", "c", "c"]);
  assert.equal(rivalOf(choices[0], choices.slice(0, 1)), undefined);
});

const SPEC = { width: 640, height: 480, fit: "letterbox", crop_ratio: 1, channels: "RGB", scale: 1 / 255, mean: [0, 0, 0], std: [1, 1, 1] };
const CARD = {
  backend_version: "1.2", preprocess_from: "its head", accuracy: {}, agreement: null, device: "a CPU", precision: "fp32",
  family: "yolo", reason: "its outputs", calibration: null, created: null, onnx_sha256: "0123456789abcdef", metadata: {},
};

/** Return the rows of a model's engine card as an object. */
function rows(changes = {}, card = {}) {
  const described = {
    ...model("m", "detect", [["1", true], ["2", false], ["3", true]]), backend: "openvino", precision: "fp32",
    inputs: [{ shape: [-1, 3, 480, 640], datatype: "FP32" }], max_batch_size: 8, preprocess: SPEC,
    card: { ...CARD, ...card }, ...changes,
  };
  return Object.fromEntries(cardRows(described));
}

test("the engine card says what is served, from what, and for which inputs", () => {
  const shown = rows();
  assert.equal(shown.Engine, "openvino 1.2");
  assert.equal(shown.Classes, 3);
  assert.equal(shown.Version, "3; also served: 1; not loaded: 2");
  assert.equal(shown.Input, "batch 1 to 8, 3 × 480 × 640 FP32");
  assert.equal(shown.Preprocessing, "letterboxed to 640 × 480, RGB, / 255; its head");
  assert.match(shown["Built from"], /0123456789ab…/);
  assert.ok(!("Agreement" in shown) && !("Calibration" in shown));
});

for (const [name, changes, card, term, expected] of [
  ["a batch of one", { max_batch_size: 1 }, {}, "Input", /^batch 1, /],
  ["any batch", { max_batch_size: 0 }, {}, "Input", /^any batch, /],
  ["a crop", { preprocess: { ...SPEC, fit: "center-crop", crop_ratio: 1.143, scale: 1, mean: [1, 2, 3], std: [4, 5, 6] } }, {},
    "Preprocessing", /short side to 549, .*0 to 255, − mean 1 2 3, \/ std 4 5 6/],
  ["no card", { card: null, card_reason: "it is of Triton" }, {}, "Card", /of Triton/],
  ["agreement in floats", {}, { agreement: { images: 1, detections: 9, box_px: 0.01234, score: 1e-6 } }, "Agreement", /0\.012 px and 0\.000001 .* 1 image$/],
  ["agreement in eight bits", {}, { precision: "int8", agreement: { images: 4, detections: 9, quality: 0.987, missed: 1, extra: 2 } },
    "Agreement", /98\.7 % on 4 images, 1 missed and 2 extra of 9/],
  ["accuracy", {}, { accuracy: { fp32: { map50_95: 0.37123 }, int8: { top1: 0.5 } } }, "Accuracy", /FP32 mAP50-95 0\.371, INT8 top-1 0\.500/],
]) {
  test(`the engine card with ${name}`, () => assert.match(rows(changes, card)[term], expected));
}

const digits = [..."0123456789"];

for (const [name, described, files] of [
  ["digits", { task: "detect", labels: digits }, ["scene-1.jpg", "scene-2.jpg"]],
  ["one digit", { task: "classify", labels: digits }, ["digit.jpg"]],
  ["street scenes", { task: "detect", labels: ["stop sign", "bus"] }, ["street.svg"]],
  ["anything", { task: "depth", labels: null }, ["street.svg"]],
  ["something else", { task: "detect", labels: ["cell"] }, []],
]) {
  test(`examples for a model of ${name}`, () => {
    assert.deepEqual(examplesOf(described).map(({ file }) => file), files);
  });
}
