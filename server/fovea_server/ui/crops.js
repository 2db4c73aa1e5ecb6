// Shows the crop of each object that later stages of a pipeline used as their input.

import { make } from "./dom.js";

// Largest size of a crop on the page, in pixels.
const HEIGHT = 40, WIDTH = 260;

/** Add the crop to the row of each object that a later stage has processed. */
export function showCrops(container, rows, picture, answer) {
  [...container.children].forEach(({ firstChild }, at) => {
    const item = rows[at].left;
    if (hasStageResults(item)) firstChild.prepend(cropOf(item, picture, answer));
  });
}

const hasStageResults = (item) => Boolean(item?.box && (item.attributes ?? item.classes ?? item.text ?? item.embedding));

function cropOf({ box: { x1, y1, x2, y2 }, rotated }, picture, { width, height }) {
  const { cx, cy, w, h, angle } = rotated ?? { cx: (x1 + x2) / 2, cy: (y1 + y2) / 2, w: x2 - x1, h: y2 - y1, angle: 0 };
  const scale = Math.min(HEIGHT / h, WIDTH / w);
  const made = make("canvas", { className: "crop", width: w * scale, height: h * scale });
  const context = made.getContext("2d");
  context.scale(scale, scale);
  context.translate(w / 2, h / 2);
  context.rotate(-angle);
  // Boxes are in pixels of an image of this width and height.
  context.drawImage(picture, -cx, -cy, width, height);
  return made;
}
