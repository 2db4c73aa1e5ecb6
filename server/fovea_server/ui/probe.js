// What a map says of the place under the pointer.

import { labelOf, percent } from "./found.js";
import { fillRuns } from "./masks.js";

const classMaps = new WeakMap(); // answer -> place in its classes, from 1, of each pixel, column by column

/**
 * Show beside the pointer what a map has there.
 * @param {Element} view that the pointer is over
 * @param {Element} canvas that has the map
 * @param {Element} box for the words
 * @param {() => object | undefined} current the answer that is shown
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

/** What a map has at a pixel, in words; "" for none. */
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

/** The depth at a share of the file's levels, of which a browser reads 256: more digits would not be true. */
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
