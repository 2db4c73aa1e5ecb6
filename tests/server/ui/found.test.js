// Tests how the page filters, labels, pairs and describes results.

import assert from "node:assert/strict";
import test from "node:test";

import {
  counts, filterByClass, filterItems, itemsOf, labelNameless, labelOf, pairItems, rowsOf, titleOf,
} from "../../../server/fovea_server/ui/found.js";
import { summary } from "../../../server/fovea_server/ui/sentences.js";

const at = (class_name, x, more = {}) => (
  { class_name, class_id: 0, score: 0.9, box: { x1: x, y1: 0, x2: x + 10, y2: 10 }, ...more }
);
const rowed = [
  { class_id: 0, class_name: "cat", score: 0.75, share: 0.75 },
  { class_id: 1, class_name: "1", score: 0.25, share: 0.25 },
];

test("sliders keep by score, and suppress no more than the server did with tiles", () => {
  const found = [at("cat", 0), at("cat", 1, { score: 0.8 }), at("cat", 50, { score: 0.2 })];
  const kept = (conf, iou, asked) => filterItems({ detections: found }, { iou: 0.9, ...asked }, { conf, iou });
  assert.deepEqual(kept(0.1, 0.9), found);
  assert.deepEqual(kept(0.8, 0.9), found.slice(0, 2));
  assert.deepEqual(kept(0.5, 0.5), found.slice(0, 1));
  assert.deepEqual(kept(0.5, 0.5, { tile: "2x2" }), found.slice(0, 2));
  assert.deepEqual(filterItems({ classes: rowed }, {}, { conf: 1, iou: 0 }), rowed);
});

for (const [kind, found, labels] of [
  ["detections", rowed, ["cat", "class 1"]],
  ["classes", rowed, ["cat", "class 1"]],
  ["semantic", { classes: rowed }, ["cat", "class 1"]],
  ["attributes", [{ name: "animal", exclusive: true, classes: rowed }], ["animal: cat", "animal: 1"]],
]) {
  test(`classes of ${kind} beyond the names have a number`, () => {
    const answer = { [kind]: structuredClone(found) };
    labelNameless(answer, 1);
    assert.deepEqual(itemsOf(answer).map(labelOf), labels);
  });
}

test("a title has what the stages of a pipeline found", () => {
  const plate = at("plate", 0, { text: { text: "AB 1" }, classes: [{ class_name: "front" }] });
  assert.equal(titleOf(plate), "plate, front, AB 1");
  assert.equal(titleOf(at("dog", 0, { attributes: [{ classes: [{ class_name: "old" }] }], error: "x" })), "dog, old, failed");
});

test("chips count each model's boxes, most first, and keep a chosen class that is not found", () => {
  const lists = [[at("cat", 0), at("dog", 9), at("dog", 50)], [at("cat", 0)]];
  const chips = counts(lists, new Map([["cow", 7]])).map(({ class_name, numbers }) => [class_name, ...numbers]);
  assert.deepEqual(chips, [["dog", 2, 0], ["cat", 1, 1], ["cow", 0, 0]]);
  assert.equal(filterByClass(lists[0], new Map([["dog", 1]])).length, 2);
  assert.equal(filterByClass(lists[0], new Map()).length, 3);
});

test("boxes of two models are paired by name, the closest first, whatever their ids", () => {
  const left = [at("cat", 0, { class_id: 3 }), at("cat", 100), at("dog", 200)];
  const right = [at("cat", 2), at("cat", 1, { class_id: 17, score: 0.5 }), at("cow", 200)];
  const pairs = pairItems(left, right);
  assert.deepEqual(pairs.map((each) => [each.left, each.right]), [
    [left[1], null], [left[2], null], [null, right[0]], [null, right[2]], [left[0], right[1]],
  ]);
  assert.ok(Math.abs(pairs.at(-1).overlap - 90 / 110) < 1e-9);
});

const boxes = { detections: [at("cat", 0), at("dog", 20), at("cow", 40)] };
const model = (labels, task = "detect") => ({ labels, task });
const ours = model(["cat", "dog", "cow"]);

/** Return the sentence about the responses of one model or of two. */
function summarize(answers, models = []) {
  const entries = answers.map((answer) => answer && { answer });
  const kept = answers.map((answer) => (answer ? itemsOf(answer) : []));
  return summary(entries, kept, rowsOf(answers, kept), models);
}

for (const [name, answers, models, expected] of [
  ["that is awaited", [undefined], [], /Waiting/],
  ["without objects", [{ detections: [] }], [], /Nothing/],
  ["of one class", [{ detections: [at("cat", 0)] }], [], /^1 × cat\.$/],
  ["of several classes", [boxes], [], /^3 objects: 1 × cat, 1 × dog, 1 × cow/],
  ["of the whole image", [{ classes: rowed }], [], /^cat 75\.0 %, 1 25\.0 %/],
  ["of depths", [{ depth: { min: 0.5, max: 12.345, unit: "m" } }], [], /0\.500 to 12\.3 m/],
  ["of a foreground", [{ saliency: { share: 0.5 } }], [], /50\.0 %/],
  ["of a picture", [{ picture: { width: 640, height: 480 } }], [], /640 x 480/],
  ["of a line of text", [{ reading: { text: "AB 1", score: 0.876 } }], [], /“AB 1”.*0\.88/],
  ["of no text", [{ reading: { text: "", score: 0 } }], [], /No text/],
  ["of a vector", [{ embedding: { data: "AACAPwAAAAA=", norm: 1 } }], [], /2 numbers, norm 1\.000/],
  ["of one attribute of several", [{ attributes: [{ name: "age", exclusive: true, classes: rowed }] }], [], /^age: cat\.$/],
  ["of attributes that may all be", [{ attributes: [{ name: "has", exclusive: false, classes: rowed.slice(1) }] }], [], /has: none/],
  ["that are the same", [boxes, boxes], [ours, ours], /same 3\./],
  ["that differ", [boxes, { detections: [at("cat", 1), at("cow", 90)] }], [ours, ours], /^1 in both, 2 left only, 1 right only\.$/],
  ["that one model has more of", [{ detections: [at("cat", 0)] }, boxes], [ours, ours], /^1 in both, 0 left only, 2 right only\.$/],
  ["that are both empty", [{ detections: [] }, { detections: [] }], [ours, ours], /Neither/],
  ["without a name in common", [boxes, { detections: [at("fish", 0)] }], [ours, model(["fish"])], /1 right only\. .*no class name in common/],
  ["of a model without names", [boxes, { detections: [at("0", 0)] }], [ours, model(null)], /model on the right has no class names/],
  ["of two tasks with boxes", [boxes, { detections: [at("cat", 0)] }], [ours, model(["cat"], "pose")], /Only boxes/],
  ["of kinds that are not compared", [boxes, { classes: rowed }], [ours, ours], /^Left: 3 .*Right: cat 75.*Not compared/],
  ["of two foregrounds", [{ saliency: { share: 0.5 } }, { saliency: { share: 0.2 } }], [ours, ours], /^Left: .*50.* Right: .*20/],
]) {
  test(`the sentence about answers ${name}`, () => assert.match(summarize(answers, models), expected));
}

test("rows of two kinds are marked by their side", () => {
  const marks = rowsOf([boxes, { classes: rowed }], [boxes.detections, rowed]).map(({ mark }) => mark);
  assert.deepEqual(marks, ["left", "left", "left", "right", "right"]);
});
