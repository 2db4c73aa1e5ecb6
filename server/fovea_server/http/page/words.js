// What was found, in a sentence for people and screen readers.

import { counts, percent } from "./found.js";

/** What one model found, or how two differ; `rows` are what is listed. */
export function summary(entries, kept, rows) {
  if (entries.some((entry) => !entry)) return "Asking…";
  if (entries.some((entry) => !entry.answer)) return "";
  const { depth } = entries[0].answer;
  if (depth) return depths(depth);
  if (kept.length === 1 || !rows.length) return sentence(kept[0]);
  const only = (side) => rows.filter((row) => row[side] && !(row.left && row.right)).length;
  const [left, right] = [only("left"), only("right")];
  if (!left && !right) return `Both find the same ${rows.length}.`;
  return `${rows.length - left - right} in both, ${left} left only, ${right} right only.`;
}

function sentence(items) {
  if (!items.length) return "Nothing found at this confidence.";
  if (!items[0].box) {
    return items.slice(0, 3).map((each) => `${each.class_name} ${percent(each.score)}`).join(", ");
  }
  const parts = counts([items]).map(({ class_name, numbers: [number] }) => `${number} × ${class_name}`);
  const objects = items.length === 1 ? "1 object" : `${items.length} objects`;
  return parts.length === 1 ? parts[0] : `${objects}: ${parts.join(", ")}`;
}

const depths = ({ min, max, unit }) =>
  `Depths from ${min.toPrecision(3)} to ${max.toPrecision(3)}${unit ? ` ${unit}` : ""}.`;
