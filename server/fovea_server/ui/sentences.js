// Describes results in sentences.

import { counts, labelOf, percent } from "./found.js";
import { KINDS, kindOf } from "./tasks.js";

/** Format a number of bytes in kB or MB. */
export const formatSize = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/**
 * Describe the results of one model, or the differences between two.
 * @param {(object | undefined)[]} entries finished request of each model; undefined while it is in flight
 * @param {object[][]} kept items that are shown, for each model
 * @param {object[]} rows result of `rowsOf`
 * @param {(object | null)[]} models results of `Fovea.model`
 */
export function summary(entries, kept, rows, models) {
  if (entries.some((entry) => !entry)) return "Waiting for the response…";
  if (entries.some((entry) => !entry.answer)) return "";
  const [left, right] = entries.map(({ answer }, index) => sentence(answer, kept[index]));
  if (right === undefined) return left;
  const [kind, other] = entries.map(({ answer }) => kindOf(answer));
  const both = `Left: ${left} Right: ${right}`;
  if (kind !== other) return `${both} Not compared: one finds ${KINDS[kind].words}, the other ${KINDS[other].words}.`;
  if (KINDS[kind].alone) return both;
  return `${difference(rows)}${caution(kind, models)}`;
}

function difference(rows) {
  if (!rows.length) return "Neither finds anything at this confidence.";
  const only = (side) => rows.filter(({ mark }) => mark === `${side} only`).length;
  const [left, right] = [only("left"), only("right")];
  if (!left && !right) return `Both find the same ${rows.length}.`;
  return `${rows.length - left - right} in both, ${left} left only, ${right} right only.`;
}

/** Return a warning if two models are hard to compare, else "". */
function caution(kind, [left, right]) {
  if (!left || !right) return "";
  const names = new Set(left.labels);
  if (left.labels && right.labels && !right.labels.some((name) => names.has(name))) {
    return " The two models have no class name in common.";
  }
  if (!left.labels !== !right.labels) {
    return ` The model on the ${left.labels ? "right" : "left"} has no class names to compare.`;
  }
  return kind === "detections" && left.task !== right.task ? " Only boxes are compared." : "";
}

function sentence(answer, items) {
  const kind = kindOf(answer);
  if (KINDS[kind]?.describe) return KINDS[kind].describe(answer[kind]);
  if (!items.length) return "Nothing found at this confidence.";
  if (!items[0].box) {
    return `${items.slice(0, 3).map((each) => `${labelOf(each)} ${percent(each.score)}`).join(", ")}.`;
  }
  const parts = counts([items]).map(({ label, numbers: [number] }) => `${number} × ${label}`);
  return parts.length === 1 ? `${parts[0]}.` : `${items.length} objects: ${parts.join(", ")}.`;
}
