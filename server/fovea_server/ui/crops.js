// What the stages of a pipeline saw of each object, above its row.

import { make } from "./dom.js";

const HEIGHT = 40, WIDTH = 260; // of a crop on the page, at most

/** Begin the row of each object that a stage has looked at with its crop. */
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
  // The picture may have been sent smaller than it is.
  context.drawImage(picture, -cx, -cy, width, height);
  return made;
}
