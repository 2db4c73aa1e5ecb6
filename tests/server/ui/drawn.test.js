// Tests the places of labels, the colours and values of maps, and the live figures.

import assert from "node:assert/strict";
import test from "node:test";

import { colourByName, colourOf } from "../../../server/fovea_server/ui/colours.js";
import { placeLabels } from "../../../server/fovea_server/ui/labels.js";
import { addSample, figures, quantile } from "../../../server/fovea_server/ui/live.js";
import { depthColour, depthRange, isBackground } from "../../../server/fovea_server/ui/masks.js";
import { depthText, valueAt } from "../../../server/fovea_server/ui/probe.js";

/** Yield random numbers from 0 to 1. The seed makes them the same in each run. */
function* chances(seed) {
  for (let state = seed; ; yield state / 2 ** 32) state = (1664525 * state + 1013904223) % 2 ** 32;
}

test("labels do not cover each other, and stay within the picture", () => {
  const chance = chances(5);
  const between = (low, high) => low + (high - low) * chance.next().value;
  const boxes = Array.from({ length: 80 }, () => {
    const [x1, y1] = [between(-20, 380), between(-20, 380)];
    return { x1, y1, x2: x1 + between(5, 90), y2: y1 + between(5, 90) };
  });
  const sizes = boxes.map(() => ({ width: Math.round(between(30, 90)), height: 20 }));
  const placed = placeLabels(boxes, sizes, { width: 400, height: 400 }).flatMap((place, index) =>
    (place ? [{ ...place, right: place.x + sizes[index].width, below: place.y + 20 }] : []));
  assert.ok(placed.length > 40 && placed.length < 80);
  placed.forEach((one, index) => {
    assert.ok(one.x >= 0 && one.y >= 0 && one.right <= 400 && one.below <= 400);
    for (const other of placed.slice(0, index)) {
      assert.ok(one.right <= other.x || other.right <= one.x || one.below <= other.y || other.below <= one.y);
    }
  });
  const alone = placeLabels([{ x1: 50, y1: 60, x2: 90, y2: 99 }], [{ width: 30, height: 20 }], { width: 400, height: 400 });
  assert.deepEqual(alone, [{ x: 50, y: 40 }]);
});

test("classes of two models have the colours of their names", () => {
  const [cat, dog] = [{ class_name: "cat", class_id: 17 }, { class_name: "dog", class_id: 3 }];
  colourByName(["x", "cat", "dog"]);
  assert.deepEqual(colourOf(cat), colourOf({ class_name: "cat", class_id: 5 }));
  assert.notDeepEqual(colourOf(cat), colourOf(dog));
  colourByName([]);
  assert.deepEqual(colourOf(cat), colourOf({ class_name: "other", class_id: 17 }));
});

/** Return the RGBA values that a browser reads from a grey PNG file. */
const levels = (values) => Uint8ClampedArray.from(values.flatMap((each) => [each, each, each, 255]));

test("a map has a value at each pixel", () => {
  const size = { width: 2, height: 2, levels: levels([0, 255, 51, 0]) };
  const depth = { min: 0.5, max: 10.5, unit: "m" };
  const at = (answer) => [[0, 0], [1, 0], [0, 1]].map(([x, y]) => valueAt(answer, x, y));
  assert.deepEqual(at({ ...size, depth }), ["0.5 m", "10.5 m", "2.5 m"]);
  assert.deepEqual(at({ ...size, saliency: {} }), ["foreground 0.0 %", "foreground 100.0 %", "foreground 20.0 %"]);
  // Runs go down the columns: one pixel without a class, two pixels of the class, one without.
  const sky = { class_name: "sky", class_id: 4, mask: { counts: "121" } };
  assert.deepEqual(at({ width: 2, height: 2, semantic: { classes: [sky] } }), ["", "sky", "sky"]);
  assert.equal(valueAt({ width: 2, height: 2 }, 0, 0), "");
  assert.equal(depthText(1, { min: 0, max: 6000, unit: null }), "6000");
  assert.equal(depthText(0.5, { min: 0, max: 0.01, unit: "m" }), "0.0050 m");
});

test("a hundredth of far depths at each end has the colour of the others there", () => {
  const ramp = Array.from({ length: 256 }, (_, level) => level);
  assert.deepEqual(depthRange(levels(ramp)), [2, 253]);
  assert.deepEqual(depthRange(levels([7, 7, 7])), [7, 8]);
  const [near, far] = [[252, 255, 164, 255], [0, 0, 4, 255]];
  assert.deepEqual([depthColour(0, { unit: "m" }), depthColour(1, { unit: "m" })], [near, far]);
  assert.deepEqual([depthColour(0, { unit: null }), depthColour(1, { unit: null })], [far, near]);
  assert.deepEqual(["Background", "0", "10"].map((class_name) => isBackground({ class_name })), [true, true, false]);
});

const sample = (at, count, pending = 0) => ({
  at,
  statistics: { durations: { 0.1: count, "+Inf": count }, versions: [{ inference_count: count, pending }] },
});
const after = (...samples) => figures(samples.reduce(addSample, []));

test("live figures are of the last samples, and begin anew where counters fall", () => {
  assert.deepEqual(after(sample(0, 100)), { queue: 0, rate: null, p99: null });
  assert.equal(after(sample(0, 100), sample(2000, 120, 3)).rate, 10);
  assert.equal(after(sample(0, 100), sample(2000, 120, 3)).queue, 3);
  assert.equal(after(sample(0, 100), sample(2000, 100)).rate, 0);
  assert.equal(after(sample(0, 100), sample(2000, 120), sample(4000, 5), sample(6000, 11)).rate, 3);
  const many = Array.from({ length: 30 }, (_, index) => sample(1000 * index, index < 15 ? 0 : 10 * (index - 15)));
  assert.equal(after(...many).rate, 10);
});

test("the 99th percentile is even within its bucket", () => {
  const before = { 0.1: 5, 0.2: 5, "+Inf": 5 };
  assert.equal(quantile(0.99, before, before), null);
  assert.ok(Math.abs(quantile(0.99, before, { 0.1: 55, 0.2: 105, "+Inf": 105 }) - 0.198) < 1e-9);
  assert.equal(quantile(0.99, before, { 0.1: 5, 0.2: 5, "+Inf": 9 }), 0.2);
});
