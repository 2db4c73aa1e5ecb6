// Writes the results of all images to a file, in formats of `fovea predict --format`.

import { runs } from "./masks.js";

// Lowest score of a visible keypoint. Keypoints with lower scores get COCO's visibility 1.
const SEEN = 0.5;

/** Formats by name: tasks that have the format, name of the file, and function that writes it. */
export const FORMS = {
  CSV: { tasks: ["detect", "segment", "pose", "obb", "text", "classify"], name: "predictions.csv", write: csv },
  COCO: { tasks: ["detect", "segment", "pose", "obb", "text"], name: "predictions.json", write: coco },
};

/** Return a response without its decoded map or image, and with `items` instead of all its detections. */
export function answerOf({ levels, painted, ...answer }, items) {
  return answer.detections ? { ...answer, detections: items } : answer;
}

/**
 * @typedef {{name: string, answer: object, items: object[]}} Result
 * The response for one image, and its objects or classes to write.
 */

/** @param {Result[]} results @param {object} model result of `Fovea.model` */
function csv(results, model) {
  const columns = ["file", "class_id", "class_name", "score", ...columnsOf(model)];
  const rows = results.flatMap(({ name, items }) => items.map((item) => rowOf(name, item)));
  const lines = [columns, ...rows.map((row) => columns.map((column) => row[column] ?? ""))];
  return new Blob([lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("")], { type: "text/csv" });
}

function columnsOf({ task, card }) {
  if (task === "classify") return [];
  const box = ["x1", "y1", "x2", "y2"];
  if (task === "obb" || task === "text") return [...box, "cx", "cy", "w", "h", "angle"];
  const points = card?.skeleton?.names ?? [];
  return [...box, ...points.flatMap((name) => ["x", "y", "score"].map((value) => `${name} ${value}`))];
}

function rowOf(file, { class_id, class_name, score, box, rotated, keypoints = [] }) {
  const points = keypoints.flatMap(({ name, ...values }) =>
    Object.entries(values).map(([value, number]) => [`${name} ${value}`, number]));
  return { file, class_id, class_name, score, ...box, ...rotated, ...Object.fromEntries(points) };
}

/** Format a cell. An apostrophe before text like `=1+1` keeps spreadsheets from computing it. */
function cell(value) {
  if (typeof value === "number") return value;
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {Result[]} results @param {object} model result of `Fovea.model` */
function coco(results, model) {
  const ids = imageIds(results.map(({ name }) => name));
  const images = results.map(({ name, answer: { width, height } }, at) => ({ id: ids[at], file_name: name, width, height }));
  const rows = results.flatMap(({ items }, at) => items.map((item) => annotation(item, ids[at])));
  const found = {
    info: { description: `${model.name} ${model.version}` },
    annotations: rows.map((row, at) => ({ id: at + 1, ...row })),
    images,
    categories: categories(model, rows),
  };
  return new Blob([JSON.stringify(found)], { type: "application/json" });
}

/** Return ids of images. COCO's images are named by their ids; other images get ids from 1. */
function imageIds(names) {
  const stems = names.map((name) => name.replace(/\.[^.]*$/, ""));
  const numbers = stems.map(Number);
  const own = stems.every((stem) => /^\d+$/.test(stem)) && new Set(numbers).size === names.length;
  return own ? numbers : names.map((_, at) => at + 1);
}

function annotation({ box, score, class_id, mask, corners, keypoints = [] }, image_id) {
  const [x, y, width, height] = [box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1].map(round);
  const row = { image_id, category_id: class_id, bbox: [x, y, width, height], score };
  const shape = mask?.counts ? encodeMask(mask) : corners ? encodePolygon(corners) : { area: round(width * height) };
  Object.assign(row, { ...shape, iscrowd: 0 });
  if (keypoints.length) {
    row.keypoints = keypoints.flatMap((each) => [each.x, each.y, each.score >= SEEN ? 2 : 1]);
    row.num_keypoints = keypoints.length;
  }
  return row;
}

function encodeMask({ size, counts }) {
  const area = runs(counts).reduce((sum, length, index) => sum + (index % 2) * length, 0);
  return { segmentation: { size, counts }, area };
}

/** Write a rotated box as a polygon, because COCO has no rotated boxes. */
function encodePolygon(corners) {
  const doubled = corners.reduce((sum, { x, y }, at) => {
    const next = corners[(at + 1) % corners.length];
    return sum + x * next.y - next.x * y;
  }, 0);
  return { segmentation: [corners.flatMap(({ x, y }) => [x, y])], area: round(Math.abs(doubled) / 2) };
}

function categories({ labels, card }, rows) {
  const count = Math.max(labels?.length ?? 0, ...rows.map(({ category_id }) => category_id + 1));
  const skeleton = card?.skeleton;
  const points = skeleton && { keypoints: skeleton.names, skeleton: skeleton.bones.map((ends) => ends.map((end) => end + 1)) };
  return Array.from({ length: count }, (_, id) => ({ id, name: labels?.[id] ?? String(id), ...points }));
}

const round = (value) => Math.round(100 * value) / 100;
