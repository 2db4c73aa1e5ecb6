// Filters, counts and compares the items of responses.

import { KINDS, kindOf } from "./tasks.js";

/** Return the items of a response, the best first: detections, classes, areas, or one map. */
export function itemsOf(answer) {
  const kind = kindOf(answer);
  return kind ? KINDS[kind].items(answer[kind]) : [];
}

// JSON leaves out symbols, so labels do not get into saved responses.
const LABEL = Symbol("label");

/** Return the name of an item's class, or its label, such as `class 7`, if the class has no name. */
export const labelOf = (item) => item[LABEL] ?? item.class_name;

/** Return the label of an item and the results of the pipeline's later stages for it. */
export const titleOf = (item) => [
  labelOf(item), ...(item.attributes ?? []).concat(item).map(({ classes }) => classes?.[0]?.class_name),
  item.text?.text, item.error && "failed",
].filter(Boolean).join(", ");

/** Label the items of classes without a name. `names` is the number of classes that have one. */
export function labelNameless(answer, names) {
  const kind = kindOf(answer);
  for (const each of KINDS[kind]?.withClass?.(answer[kind]) ?? []) {
    if (each.class_id >= names) each[LABEL] = `class ${each.class_id}`;
  }
}

/** Return the items that the sliders keep. `asked` has the options by which the server has filtered. */
export function filterItems(answer, asked, { conf, iou }) {
  if (!answer.detections) return itemsOf(answer);
  const kept = answer.detections.filter((each) => each.score >= conf);
  // With tiles, the server joins the parts of an object, and suppresses overlaps by other rules.
  return iou < asked.iou && !asked.tile ? suppressOverlaps(kept, iou) : kept;
}

/** Return the items of the chosen classes, or all items if no class is chosen. */
export function filterByClass(items, chosen) {
  return chosen.size ? items.filter((each) => chosen.has(each.class_name)) : items;
}

/** Suppress overlaps within each class like the server. `items` are sorted, the best first. */
function suppressOverlaps(items, iou) {
  const kept = [];
  for (const each of items) {
    const rival = (better) => better.class_id === each.class_id && overlap(better, each) > iou;
    if (!kept.some(rival)) kept.push(each);
  }
  return kept;
}

/** Return the intersection over union of two boxes. */
export function overlap({ box: a }, { box: b }) {
  const width = Math.min(a.x2, b.x2) - Math.max(a.x1, b.x1);
  const height = Math.min(a.y2, b.y2) - Math.max(a.y1, b.y1);
  if (width <= 0 || height <= 0) return 0;
  return (width * height) / (area(a) + area(b) - width * height);
}

const area = (box) => (box.x2 - box.x1) * (box.y2 - box.y1);

/**
 * Count the boxes of each class in each list. Classes with the most boxes come first. `others` maps the
 * names of further classes to their ids; these classes are listed even without a box.
 */
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
 * Return the rows to list for one or two responses: `{left, right, mark}`. `left` or `right` is null if
 * that model does not have the item.
 * @param {(object | undefined)[]} answers responses; undefined before a response arrives
 * @param {object[][]} kept items to list, for each response
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
 * Pair the items of two models. Return the items without a partner, then the pairs with their overlap.
 * Boxes of one class are paired by overlap, the largest first. Items without a box are paired by class.
 * Classes are compared by name, because two models may have different ids for one class.
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
