// Shows the value of a map under the pointer.

import { labelOf, percent } from "./found.js";
import { fillRuns } from "./masks.js";

// Per response: the index of each pixel's class in the response, counted from 1, column by column; 0 for no
// class.
const classMaps = new WeakMap();

/**
 * Show the value of a map beside the pointer.
 * @param {Element} view element that the pointer moves over
 * @param {Element} canvas canvas with the map
 * @param {Element} box element for the text
 * @param {() => object | undefined} current returns the response that is shown
 */
export function wireProbe(view, canvas, box, current) {
  const showValue = ({ clientX, clientY }) => {
    const [outer, inner] = [view, canvas].map((each) => each.getBoundingClientRect());
    const answer = current();
    const [x, y] = [(clientX - inner.left) / inner.width, (clientY - inner.top) / inner.height];
    box.textContent = answer && x >= 0 && y >= 0 && x < 1 && y < 1
      ? valueAt(answer, Math.floor(x * answer.width), Math.floor(y * answer.height)) : "";
    box.style.top = `${clientY - outer.top}px`;
    box.style.left = `${clientX - outer.left}px`;
    box.classList.toggle("before", clientX - outer.left > outer.width / 2);
  };
  view.addEventListener("pointermove", showValue);
  view.addEventListener("pointerdown", showValue);
  view.addEventListener("pointerleave", () => (box.textContent = ""));
}

/** Return the value of a map at a pixel as text, or "" if there is none. */
export function valueAt(answer, x, y) {
  const { levels, depth, semantic, width, height } = answer;
  if (semantic) {
    const found = semantic.classes[classesOf(answer)[x * height + y] - 1];
    return found ? labelOf(found) : "";
  }
  if (!levels) return "";
  const level = levels[4 * (y * width + x)] / 255;
  return depth ? depthText(level, depth) : `foreground ${percent(level)}`;
}

/**
 * Format the depth at a fraction of the depth range. Browsers read only 256 levels, so more digits would
 * suggest a precision that the value does not have.
 */
export function depthText(share, { min, max, unit }) {
  const decimals = Math.max(0, -Math.ceil(Math.log10((max - min) / 255)));
  return `${(min + (max - min) * share).toFixed(Math.min(decimals, 9))}${unit ? ` ${unit}` : ""}`;
}

function classesOf(answer) {
  if (!classMaps.has(answer)) {
    const { width, height, semantic } = answer;
    const map = new Uint16Array(width * height);
    semantic.classes.forEach(({ mask }, index) => {
      if (!mask?.counts) return;
      fillRuns(mask.counts, height, (x, y, rows) => map.fill(index + 1, x * height + y, x * height + y + rows));
    });
    classMaps.set(answer, map);
  }
  return classMaps.get(answer);
}
