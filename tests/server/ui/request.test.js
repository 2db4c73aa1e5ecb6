// Tests the options of requests, the need for new requests, and the files with results.

import assert from "node:assert/strict";
import test from "node:test";

import { ask, describeMissing, optionsFor } from "../../../server/fovea_server/ui/request.js";
import { answerOf, FORMS } from "../../../server/fovea_server/ui/results.js";
import { enlarge, isLarge, shrinkImage } from "../../../server/fovea_server/ui/shrink.js";

const SET = { conf: 0.25, iou: 0.7, tile: "", overlap: 0.2, shrink: true };
const TILES = { ...SET, tile: "2x2" };
const detect = { task: "detect" };

for (const [name, state, task, expected] of [
  ["what sliders may show later", SET, "detect", { conf: 0.05, iou: 0.7, shrink: true }],
  ["less than that", { ...SET, conf: 0.01 }, "detect", { conf: 0.01, iou: 0.7, shrink: true }],
  ["tiles as they are set, of the whole image", TILES, "obb", { conf: 0.25, iou: 0.7, tile: "2x2", overlap: 0.2, shrink: false }],
  ["text without IoU and tiles", TILES, "text", { conf: 0.05, shrink: true }],
  ["classes without options", TILES, "classify", { shrink: true }],
]) {
  test(`a model is asked for ${name}`, () => assert.deepEqual(optionsFor(state, { task }), expected));
}

for (const [name, asked, state, answer, expected] of [
  ["nothing more for a higher confidence", SET, { ...SET, conf: 0.9 }, { detections: [] }, /^$/],
  ["a lower confidence", SET, { ...SET, conf: 0.01 }, { detections: [] }, /0\.01/],
  ["another IoU", SET, { ...SET, iou: 0.1 }, { detections: [] }, /IoU 0\.10/],
  ["tiles", SET, TILES, { detections: [] }, /tiles of 2x2/],
  ["no tiles any more", TILES, SET, { detections: [] }, /without tiles/],
  ["another overlap", TILES, { ...TILES, overlap: 0.4 }, { detections: [] }, /overlap of 0\.40/],
  ["another confidence of tiles", TILES, { ...TILES, conf: 0.5 }, { detections: [] }, /confidence 0\.50/],
  ["the image in its full size", SET, { ...SET, shrink: false }, { detections: [] }, /full size/],
  ["no options that an answer does not have", SET, { ...SET, iou: 0.1 }, { classes: [] }, /^$/],
]) {
  test(`an answer lacks ${name}`, () => {
    const entry = { asked: optionsFor(asked, detect), answer };
    assert.match(describeMissing(entry, state, detect), expected);
  });
}

test("four requests are under way at a time, and the latest of the others is next", { skip: !AbortSignal.any }, async () => {
  const held = [];
  const fovea = { predict: (name) => new Promise((resolve, reject) => held.push({ name, resolve, reject })) };
  const image = { blob: new Blob(["x"]) };
  const answer = { images: [{ classes: [] }], timing_ms: { total: 1 } };
  const entries = [..."abcdef"].map((name) => ask(fovea, image, { name, task: "classify" }, { shrink: true }));
  const begun = () => held.map(({ name }) => name).join("");
  await new Promise(setImmediate);
  assert.equal(begun(), "abcd");
  held[1].reject(new Error("no"));
  assert.equal((await entries[1]).error.message, "no");
  await new Promise(setImmediate);
  assert.equal(begun(), "abcdf");
  for (const { resolve } of held) resolve(answer);
  await new Promise(setImmediate);
  assert.equal(begun(), "abcdfe");
  held[5].resolve(answer);
  assert.ok((await Promise.all(entries)).every((entry, index) => index === 1 || entry.answer));
});

test("an answer about a smaller image becomes one about the image", () => {
  const box = { x1: 1, y1: 2, x2: 3, y2: 4 };
  const answer = {
    width: 100, height: 50,
    detections: [
      { box, rotated: { cx: 2, cy: 3, w: 4, h: 5, angle: 0.5 }, corners: [{ x: 1, y: 1 }], keypoints: [{ x: 2, y: 2, score: 0.5 }] },
    ],
  };
  enlarge(answer, { width: 400, height: 150 });
  assert.deepEqual(answer, {
    width: 400, height: 150,
    detections: [{
      box: { x1: 4, y1: 6, x2: 12, y2: 12 },
      rotated: { cx: 8, cy: 9, w: 16, h: 15, angle: 0.5 },
      corners: [{ x: 4, y: 3 }],
      keypoints: [{ x: 8, y: 6, score: 0.5 }],
    }],
  });
});

for (const [name, preprocess, width] of [
  ["all of it", { width: 100, height: 100, fit: "letterbox" }, 200],
  ["stretched", { width: 100, height: 100, fit: "stretch" }, 400],
  ["the middle of it", { width: 100, height: 100, fit: "center-crop", crop_ratio: 1.25 }, 500],
]) {
  test(`an image is sent at twice the size at which a model sees ${name}`, () => {
    const image = { blob: new Blob(), width: 1000, height: 500, smaller: new Map() };
    shrinkImage(image, { preprocess });
    assert.deepEqual([...image.smaller.keys()], [width]);
  });
}

test("what is small, or hardly larger than the model takes it, is sent as it is", () => {
  const image = { blob: { size: 300_000 }, width: 1000, height: 500, smaller: new Map() };
  assert.ok(isLarge(image));
  assert.ok(!isLarge({ ...image, unshown: true }) && !isLarge({ blob: { size: 200_000 } }));
  assert.equal(shrinkImage(image, { preprocess: { width: 640, height: 640, fit: "letterbox" } }), null);
  assert.equal(shrinkImage(image, { preprocess: null }), null);
});

const box = { x1: 1, y1: 2, x2: 11, y2: 22 };
const skeleton = { names: ["nose", "eye"], bones: [[0, 1]] };
const write = async (form, items, model, names = ["a.jpg"]) =>
  FORMS[form].write(names.map((name) => ({ name, answer: { width: 30, height: 40 }, items })), model).text();

test("COCO has masks, corners and keypoints", async () => {
  const items = [
    // Two of the mask's four pixels are set. They lie in two columns.
    { box, class_id: 0, score: 0.9, mask: { size: [2, 2], counts: "121" } },
    { box, class_id: 2, score: 0.8, corners: [{ x: 2, y: 1 }, { x: 6, y: 1 }, { x: 6, y: 4 }, { x: 2, y: 4 }] },
    { box, class_id: 0, score: 0.7, keypoints: [{ name: "nose", x: 1, y: 2, score: 0.5 }, { name: "eye", x: 3, y: 4, score: 0.4 }] },
  ];
  const found = JSON.parse(await write("COCO", items, { name: "m", version: "1", labels: ["cat"], card: { skeleton } }));
  assert.deepEqual(found.annotations.map(({ id, area, bbox }) => [id, area, bbox]), [
    [1, 2, [1, 2, 10, 20]], [2, 12, [1, 2, 10, 20]], [3, 200, [1, 2, 10, 20]],
  ]);
  assert.deepEqual(found.annotations[1].segmentation, [[2, 1, 6, 1, 6, 4, 2, 4]]);
  assert.deepEqual([found.annotations[2].keypoints, found.annotations[2].num_keypoints], [[1, 2, 2, 3, 4, 1], 2]);
  assert.deepEqual(found.categories.map(({ name }) => name), ["cat", "1", "2"]);
  assert.deepEqual(found.categories[0].skeleton, [[1, 2]]);
});

test("images of COCO have the numbers of their names", async () => {
  const ids = async (...names) => JSON.parse(await write("COCO", [], { name: "m", version: "1" }, names)).images.map(({ id }) => id);
  assert.deepEqual(await ids("000139.jpg", "000285.jpg"), [139, 285]);
  assert.deepEqual(await ids("7.jpg", "7.png"), [1, 2]);
});

test("a cell of CSV is quoted, and no spreadsheet computes it", async () => {
  const items = [{ box, class_id: 0, class_name: '=1+1,"x"', score: 0.5, keypoints: [{ name: "nose", x: 1, y: 2, score: 0.6 }] }];
  const [head, row] = (await write("CSV", items, { task: "pose", card: { skeleton } })).split("\r\n");
  assert.equal(head, "file,class_id,class_name,score,x1,y1,x2,y2,nose x,nose y,nose score,eye x,eye y,eye score");
  assert.equal(row, `a.jpg,0,"'=1+1,""x""",0.5,1,2,11,22,1,2,0.6,,,`);
});

test("a saved answer has the objects that are shown, and no pixels of the page", () => {
  assert.deepEqual(answerOf({ detections: [1, 2], levels: "pixels" }, [1]), { detections: [1] });
  assert.deepEqual(answerOf({ classes: [1], levels: "pixels" }, []), { classes: [1] });
  assert.deepEqual(answerOf({ picture: { png: "" }, painted: "image" }, []), { picture: { png: "" } });
});
