// Draws results over an image: masks and maps on a canvas, outlines and labels in an SVG.

import { colourOf, css, ink } from "./colours.js";
import { labelOf, percent, titleOf } from "./found.js";
import { placeLabels } from "./labels.js";
import {
  depthColour, depthRange, drawMap, drawMasks, drawPicture, drawVector, isBackground,
} from "./masks.js";
import { depthText } from "./probe.js";

const LABEL_HEIGHT = 20;
const LABEL_FONT = "600 12px system-ui, sans-serif";
const BAR_WIDTH = 132;
const BARS = 5;
const AREAS = 10;
// Lowest score of a class that gets a bar.
const LEAST_SCORE = 0.005;
// Distance of legends from the edge of the image, in pixels.
const EDGE = 8;
// Number of colours in the legend of depths, and the width of each in pixels.
const [STEPS, STEP] = [32, 4];
// Smallest area that gets a label, as a fraction of the image. A smaller one would be shown as 0.0 %.
const LEAST_SHARE = 0.0005;
// Lowest score of a keypoint to draw. Keypoints with lower scores are mostly hidden, and their places are
// guesses.
const VISIBLE = 0.5;
const measuring = document.createElement("canvas").getContext("2d");

/**
 * Draw the results of one image.
 * @param {{canvas?: HTMLCanvasElement, svg: SVGElement}} layers elements over the image; without a canvas,
 *     masks and maps are not painted
 * @param {object} answer response for the image, with its size in pixels
 * @param {object[]} items items of the response to draw
 * @param {{bones: number[][], alone: Set<object>}} how pairs of keypoints that a line connects, and the
 *     items that only this one of two models has
 */
export function draw({ canvas, svg }, answer, items, { bones, alone }) {
  const { width, height } = svg.getBoundingClientRect();
  const scale = width / answer.width;
  svg.replaceChildren();
  if (canvas) {
    drawPicture(canvas, answer) || drawMap(canvas, answer) || drawVector(canvas, answer) ||
      drawMasks(canvas, answer, items);
  }
  if (answer.classes || answer.attributes) {
    svg.append(...bars(items, height));
    return;
  }
  if (answer.semantic) svg.append(...areas(items, height));
  if (answer.depth && answer.levels) svg.append(scaleOf(answer, height));
  const boxed = items.filter((each) => each.box);
  const groups = boxed.map((item) => group(item, alone, outline(item, scale), ...pose(item, bones, scale)));
  svg.append(...groups.reverse(), ...labels(boxed, alone, scale, { width, height }));
}

/** Highlight one object. Null removes the highlight. */
export function light(svg, item) {
  svg.classList.toggle("focused", item !== null);
  for (const each of svg.children) each.classList.toggle("lit", each.item === item);
}

function group(item, alone, ...shapes) {
  const made = element("g", { class: alone.has(item) ? "object alone" : "object" });
  made.style.setProperty("--colour", css(colourOf(item)));
  made.item = item;
  made.append(...shapes);
  return made;
}

function outline({ box, corners }, scale) {
  if (corners) {
    const points = corners.map(({ x, y }) => `${x * scale},${y * scale}`).join(" ");
    return element("polygon", { class: "outline", points });
  }
  return element("rect", {
    class: "outline",
    x: box.x1 * scale,
    y: box.y1 * scale,
    width: (box.x2 - box.x1) * scale,
    height: (box.y2 - box.y1) * scale,
  });
}

function pose({ keypoints = [] }, bones, scale) {
  const isVisible = (index) => keypoints[index]?.score >= VISIBLE;
  const lines = bones.filter(([from, to]) => isVisible(from) && isVisible(to)).map(([from, to]) => {
    const [a, b] = [keypoints[from], keypoints[to]];
    const ends = { x1: a.x * scale, y1: a.y * scale, x2: b.x * scale, y2: b.y * scale };
    return element("line", { class: "bone", ...ends });
  });
  const points = keypoints.filter((each) => each.score >= VISIBLE).map(({ x, y }) =>
    element("circle", { class: "joint", cx: x * scale, cy: y * scale, r: 3 }));
  return [...lines, ...points];
}

function labels(items, alone, scale, area) {
  const texts = items.map((each) => `${titleOf(each)} ${each.score.toFixed(2)}`);
  const sizes = texts.map((text) => ({ width: textWidth(text) + 10, height: LABEL_HEIGHT }));
  const boxes = items.map(({ box }) => scaleBox(box, scale));
  return placeLabels(boxes, sizes, area).flatMap((place, index) => {
    if (!place) return [];
    const made = group(items[index], alone, ...tag(texts[index], place, sizes[index], items[index]));
    made.classList.add("label");
    return [made];
  });
}

/** Make bars for the best classes of an image, in its lower left corner. */
function bars(items, height) {
  const shown = items.filter(({ score }) => score >= LEAST_SCORE).slice(0, BARS);
  const top = height - shown.length * (LABEL_HEIGHT + 4) - 8;
  return shown.map((item, index) => {
    const y = top + index * (LABEL_HEIGHT + 4);
    const text = `${labelOf(item)}  ${percent(item.score)}`;
    const back = { x: 10, y, width: Math.max(BAR_WIDTH, textWidth(text)) + 14, height: LABEL_HEIGHT, rx: 3 };
    return group(
      item,
      new Set(),
      element("rect", { class: "bar-back", ...back }),
      element("rect", { class: "bar", ...back, width: Math.max(3, back.width * item.score) }),
      makeText(text, { x: 17, y: y + 14, class: "bar-text" }),
    );
  });
}

/** Make labels for the largest areas, as many as fit into the height. */
function areas(items, height) {
  const room = Math.min(AREAS, Math.floor((height - 2 * EDGE) / LABEL_HEIGHT));
  const shown = items.filter((item) => !isBackground(item) && item.score >= LEAST_SHARE);
  return shown.slice(0, Math.max(0, room)).map((item, index) => {
    const text = `${labelOf(item)} ${percent(item.score)}`;
    const size = { width: textWidth(text) + 10, height: LABEL_HEIGHT };
    const made = group(item, new Set(), ...tag(text, { x: EDGE, y: EDGE + index * LABEL_HEIGHT }, size, item));
    made.classList.add("label");
    return made;
  });
}

/** Make the legend of a depth map, in the lower left corner: its colours between its two end values. */
function scaleOf({ levels, depth }, height) {
  const made = element("g", { class: "object label" });
  const range = depthRange(levels);
  const y = height - EDGE - LABEL_HEIGHT;
  const bar = Array.from({ length: STEPS }, (_, step) => css(depthColour(step / (STEPS - 1), depth)));
  const ends = range.map((level) => depthText(level / 255, depth));
  let x = EDGE;
  const put = (width, fill, text) => {
    made.append(element("rect", { x, y, width: width + 0.5, height: LABEL_HEIGHT, fill }));
    if (text) made.append(makeText(text, { x: x + 5, y: y + 14, fill: ink(fill.match(/\d+/g).map(Number)) }));
    x += width;
  };
  put(textWidth(ends[0]) + 10, bar[0], ends[0]);
  for (const fill of bar) put(STEP, fill);
  put(textWidth(ends[1]) + 10, bar.at(-1), ends[1]);
  return made;
}

function tag(text, { x, y }, size, item) {
  const words = makeText(text, { x: x + 5, y: y + 14, fill: ink(colourOf(item)) });
  return [element("rect", { class: "tag", x, y, ...size, rx: 3 }), words];
}

const scaleBox = ({ x1, y1, x2, y2 }, scale) => (
  { x1: x1 * scale, y1: y1 * scale, x2: x2 * scale, y2: y2 * scale }
);

function textWidth(text) {
  measuring.font = LABEL_FONT;
  return Math.ceil(measuring.measureText(text).width);
}

function makeText(text, attributes) {
  const made = element("text", attributes);
  made.textContent = text;
  return made;
}

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
