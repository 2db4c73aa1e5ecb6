// What was found on an image: filtered, counted, compared.

import { KINDS, kindOf } from "./tasks.js";

/** The rows to show for an answer, best first: detections, classes, areas, or a single map. */
export function itemsOf(answer) {
  const kind = kindOf(answer);
  return kind ? KINDS[kind].items(answer[kind]) : [];
}

const LABEL = Symbol("label"); // No part of an answer that is saved.

/** What to call the class of something: a number alone is no name. */
export const labelOf = (item) => item[LABEL] ?? item.class_name;

/** The same with what a pipeline found of it. */
export const titleOf = (item) => [
  labelOf(item), ...(item.attributes ?? []).concat(item).map(({ classes }) => classes?.[0]?.class_name),
  item.text?.text, item.error && "failed",
].filter(Boolean).join(", ");

/** Label what an answer has of classes for which the model, which has so many, has no name. */
export function labelNameless(answer, names) {
  const kind = kindOf(answer);
  for (const each of KINDS[kind]?.withClass?.(answer[kind]) ?? []) {
    if (each.class_id >= names) each[LABEL] = `class ${each.class_id}`;
  }
}

/** Those of an answer that the sliders keep. `asked` is what the server has filtered by. */
export function filterItems(answer, asked, { conf, iou }) {
  if (!answer.detections) return itemsOf(answer);
  const kept = answer.detections.filter((each) => each.score >= conf);
  // Across tiles the server joins what is cut off, and suppresses by other rules.
  return iou < asked.iou && !asked.tile ? suppressOverlaps(kept, iou) : kept;
}

/** Those that have one of the chosen classes; all where none is chosen. */
export function filterByClass(items, chosen) {
  return chosen.size ? items.filter((each) => chosen.has(each.class_name)) : items;
}

/** Greedy suppression within each class, as the server does it; items are best first. */
function suppressOverlaps(items, iou) {
  const kept = [];
  for (const each of items) {
    const rival = (better) => better.class_id === each.class_id && overlap(better, each) > iou;
    if (!kept.some(rival)) kept.push(each);
  }
  return kept;
}

/** Intersection over union of two boxes. */
export function overlap({ box: a }, { box: b }) {
  const width = Math.min(a.x2, b.x2) - Math.max(a.x1, b.x1);
  const height = Math.min(a.y2, b.y2) - Math.max(a.y1, b.y1);
  if (width <= 0 || height <= 0) return 0;
  return (width * height) / (area(a) + area(b) - width * height);
}

const area = (box) => (box.x2 - box.x1) * (box.y2 - box.y1);

/** The classes of boxes and how many each list has, most first; also `others`, which may have none. */
export function counts(lists, others = new Map()) {
  const found = new Map();
  const of = (class_name, class_id, label = class_name) => {
    if (!found.has(class_name)) {
      found.set(class_name, { class_name, class_id, label, numbers: lists.map(() => 0) });
    }
    return found.get(class_name);
  };
  lists.forEach((items, index) => {
    for (const item of items) {
      if (item.box) of(item.class_name, item.class_id, labelOf(item)).numbers[index] += 1;
    }
  });
  others.forEach((class_id, class_name) => of(class_name, class_id));
  return [...found.values()].sort((a, b) => Math.max(...b.numbers) - Math.max(...a.numbers));
}

/**
 * The rows of one answer or of two: `{left, right, mark}`, with null for what only one has.
 * @param {(object | undefined)[]} answers undefined for one that is not there yet
 * @param {object[][]} kept the items of each to list
 */
export function rowsOf(answers, kept) {
  const lefts = kept[0].map((left) => ({ left, right: null, mark: "" }));
  if (answers.length < 2 || !answers.every(Boolean)) return lefts;
  const [kind, other] = answers.map(kindOf);
  if (kind === other) return pairItems(...kept);
  const rights = kept[1].map((right) => ({ left: null, right, mark: "right" }));
  return [...lefts.map((row) => ({ ...row, mark: "left" })), ...rights];
}

/**
 * Pairs of what two models found, with how far they overlap.
 * Boxes of one class are paired by overlap, the closest first; everything else by class. Classes
 * are compared by name: models may have the same one under different ids.
 */
export function pairItems(lefts, rights) {
  const candidates = [];
  for (const left of lefts) {
    for (const right of rights) {
      if (left.class_name !== right.class_name) continue;
      const shared = left.box && right.box ? overlap(left, right) : 1;
      if (shared >= 0.5) candidates.push({ left, right, mark: "", overlap: shared });
    }
  }
  candidates.sort((a, b) => b.overlap - a.overlap);
  const taken = new Set();
  const pairs = candidates.filter(({ left, right }) => {
    if (taken.has(left) || taken.has(right)) return false;
    taken.add(left).add(right);
    return true;
  });
  const alone = [
    ...lefts.filter((each) => !taken.has(each)).map((left) => ({ left, right: null, mark: "left only" })),
    ...rights.filter((each) => !taken.has(each)).map((right) => ({ left: null, right, mark: "right only" })),
  ];
  return [...alone, ...pairs];
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;
