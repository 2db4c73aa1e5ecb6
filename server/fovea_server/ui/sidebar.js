// Fills the column beside the image: the class filter, and the list of results.

import { colourOf, css } from "./colours.js";
import { button, make, refill } from "./dom.js";
import { counts, percent, titleOf } from "./found.js";
import { FORMS } from "./results.js";

/** Show a chip for each class. `lists` has the items of each model, before the class filter. */
export function showChips(container, lists, chosen, onToggle) {
  refill(container, counts(lists, chosen).map(({ class_name, class_id, label, numbers }) => {
    const number = make("b", { textContent: numbers.join(" | ") });
    const chip = button("chip", class_name, () => onToggle(class_name, class_id), label, number);
    chip.style.setProperty("--colour", css(colourOf({ class_name, class_id })));
    chip.setAttribute("aria-pressed", chosen.has(class_name));
    return chip;
  }));
}

/** List results. A row under the pointer or with the focus is highlighted in the image; a click pins it. */
export function showFound(container, rows, pinned, onLight, onPin) {
  refill(container, rows.map((row, index) => {
    const each = row.left ?? row.right;
    const name = make("span", { className: "name", textContent: titleOf(each) });
    const where = make("small", { textContent: place(row), title: "left, top, width × height, in pixels" });
    const made = button("row", String(index), () => onPin(row), name, ...scores(row), where);
    made.style.setProperty("--colour", css(colourOf(each)));
    made.style.setProperty("--score", each.score);
    made.setAttribute("aria-pressed", row.left === pinned?.left && row.right === pinned?.right);
    made.onpointerenter = made.onfocus = () => onLight(row);
    made.onpointerleave = made.onblur = () => onLight(null);
    return make("li", {}, made);
  }));
}

function scores({ left, right, mark }) {
  const shown = [left, right].filter(Boolean)
    .map((each) => (each.box ? each.score.toFixed(2) : percent(each.score)));
  const text = make("b", { textContent: shown.join(" | ") });
  return mark ? [make("mark", { textContent: mark }), text] : [text];
}

/** Describe the place of a row in the image or, if the row is a pair, the overlap of its boxes. */
function place({ left, right, overlap }) {
  const { box, rotated } = left ?? right;
  if (!box) return "";
  if (left && right) return `overlap ${overlap.toFixed(3)}`;
  if (rotated) {
    const [cx, cy, w, h] = [rotated.cx, rotated.cy, rotated.w, rotated.h].map(Math.round);
    return `${cx}, ${cy}  ${w} × ${h}  ${Math.round((180 * rotated.angle) / Math.PI)}°`;
  }
  const [x1, y1, x2, y2] = [box.x1, box.y1, box.x2, box.y2].map(Math.round);
  return `${x1}, ${y1}  ${x2 - x1} × ${y2 - y1}`;
}

/** Show buttons that save the results of this image, and of all images in the formats of the task. */
export function showSaves(container, answered, task, count, onSave) {
  container.hidden = !answered;
  const forms = Object.keys(FORMS).filter((name) => FORMS[name].tasks.includes(task));
  const all = count > 1 ? ` of all ${count}` : "";
  refill(container, [["Picture", ""], ["JSON", ""], ...forms.map((name) => [name, all])].map(([name, what]) =>
    button("pill", name, () => onSave(name), name + what)));
}
