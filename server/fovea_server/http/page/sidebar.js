// The column beside the image: classes to choose, and the list of what was found.

import { colour, css } from "./colours.js";
import { counts, percent } from "./found.js";

/** Show a chip for each class; `lists` are what each model found, before classes are chosen. */
export function showChips(container, lists, chosen, onToggle) {
  refill(container, counts(lists, chosen).map((each) => {
    const { class_name, class_id, numbers } = each;
    const chip = button("chip", class_name, () => onToggle(each));
    chip.style.setProperty("--colour", css(colour(class_id)));
    chip.setAttribute("aria-pressed", String(chosen.has(class_name)));
    chip.append(class_name, text("b", numbers.join(" | ")));
    return chip;
  }));
}

/** List what was found; focus or pointer on a row lights it in the image, a click keeps it lit. */
export function showFound(container, rows, pinned, onLight, onPin) {
  refill(container, rows.map((row, index) => {
    const each = row.left ?? row.right;
    const made = button("row", String(index), () => onPin(row));
    made.style.setProperty("--colour", css(colour(each.class_id)));
    made.style.setProperty("--score", each.score);
    made.setAttribute("aria-pressed", String(row.left === pinned?.left && row.right === pinned?.right));
    made.append(text("span", each.class_name, "name"), ...scores(row), text("small", place(row)));
    for (const event of ["pointerenter", "focus"]) made.addEventListener(event, () => onLight(row));
    for (const event of ["pointerleave", "blur"]) made.addEventListener(event, () => onLight(null));
    const line = document.createElement("li");
    line.append(made);
    return line;
  }));
}

function scores({ left, right, compared }) {
  const shown = (each) => (each.box ? each.score.toFixed(2) : percent(each.score));
  if (!compared) return [text("b", shown(left))];
  if (left && right) return [text("b", `${shown(left)} | ${shown(right)}`)];
  return [text("mark", left ? "left only" : "right only"), text("b", shown(left ?? right))];
}

/** Where a row is in the image; of a pair, how far the two boxes overlap. */
function place({ left, right, overlap }) {
  const { box } = left ?? right;
  if (!box) return "";
  if (left && right) return `overlap ${overlap.toFixed(3)}`;
  const [x1, y1, x2, y2] = [box.x1, box.y1, box.x2, box.y2].map(Math.round);
  return `${x1}, ${y1}  ${x2 - x1} × ${y2 - y1}`;
}

/** Replace the children, and leave the focus where it was. */
function refill(container, nodes) {
  const key = container.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  container.replaceChildren(...nodes);
  if (key !== null) container.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

function button(className, key, onClick) {
  const made = Object.assign(document.createElement("button"), { type: "button", className });
  made.dataset.key = key;
  made.addEventListener("click", onClick);
  return made;
}

function text(name, textContent, className = "") {
  return Object.assign(document.createElement(name), { textContent, className });
}
