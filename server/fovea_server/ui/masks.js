// Paints masks, maps and vectors onto a canvas of the image's size.

import { colourOf, css } from "./colours.js";
import { vectorOf } from "./tasks.js";

const OPACITY = 0.45;
const DIMMED = 0.75; // How dark the background of a foreground becomes.
// A class of these names is what all others are not; without names it mostly is the first.
const BACKGROUND = ["background", "0"];
const STRIP = 0.08; // The share of the height that a vector takes.
const FAR = 0.01; // The share of depths at each end that has the colour of the others there.
// Matplotlib's inferno: equal steps of depth look equal.
const INFERNO = [
  [0, 0, 4], [27, 12, 65], [74, 12, 107], [120, 28, 109], [165, 44, 96],
  [207, 68, 70], [237, 105, 37], [251, 155, 6], [247, 209, 61], [252, 255, 164],
];

/** Paint the masks of these items, worst first, so that the best are on top. */
export function drawMasks(canvas, { width, height, semantic }, items) {
  const context = clearCanvas(canvas, width, height);
  for (const item of [...items].reverse()) {
    if (!item.mask?.counts || (semantic && isBackground(item))) continue;
    context.fillStyle = css(colourOf(item));
    fillRuns(item.mask.counts, height, (x, y, rows) => context.fillRect(x, y, 1, rows));
  }
  canvas.style.opacity = OPACITY;
}

export const isBackground = ({ class_name }) => BACKGROUND.includes(class_name.toLowerCase());

/** Paint the map of a saliency or depth model; false if the answer has none. */
export function drawMap(canvas, { width, height, levels, depth }) {
  if (!levels) return false;
  const context = clearCanvas(canvas, width, height);
  const image = context.createImageData(width, height);
  const paint = depth ? painterOfDepth(levels, depth) : dim;
  for (let at = 0; at < image.data.length; at += 4) image.data.set(paint(levels[at]), at);
  context.putImageData(image, 0, 0);
  canvas.style.opacity = 1;
  return true;
}

/** Paint a vector as a strip along the bottom, red above 0 and blue below; false if the answer has none. */
export function drawVector(canvas, { width, height, embedding }) {
  if (!embedding) return false;
  const context = clearCanvas(canvas, width, height);
  const numbers = vectorOf(embedding);
  const most = numbers.reduce((largest, each) => Math.max(largest, Math.abs(each)), 0) || 1;
  const [wide, tall] = [width / numbers.length, height * STRIP];
  numbers.forEach((each, at) => {
    const pale = Math.round(255 * (1 - Math.abs(each) / most));
    context.fillStyle = each > 0 ? css([255, pale, pale]) : css([pale, pale, 255]);
    context.fillRect(at * wide, height - tall, Math.ceil(wide), tall);
  });
  canvas.style.opacity = 1;
  return true;
}

/** Paint the picture that a model has made, over the image; false if the answer has none. */
export function drawPicture(canvas, { painted }) {
  if (!painted) return false;
  clearCanvas(canvas, painted.width, painted.height).drawImage(painted, 0, 0);
  canvas.style.opacity = 1;
  return true;
}

/**
 * Decode the PNG file of an answer: of a map as its `levels`, RGBA, of which red counts; of a picture as
 * what is `painted`.
 */
export async function decodeMap(answer) {
  const png = (answer.saliency ?? answer.depth ?? answer.picture)?.png;
  if (!png) return;
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  if (answer.picture) {
    answer.painted = image;
    return;
  }
  const context = clearCanvas(document.createElement("canvas"), answer.width, answer.height);
  context.drawImage(image, 0, 0);
  answer.levels = context.getImageData(0, 0, answer.width, answer.height).data;
}

const dim = (level) => [0, 0, 0, DIMMED * (255 - level)];

function painterOfDepth(levels, depth) {
  const [low, high] = depthRange(levels);
  const share = (level) => Math.max(0, Math.min((level - low) / (high - low), 1));
  const table = Array.from({ length: 256 }, (_, level) => depthColour(share(level), depth));
  return (level) => table[level];
}

/** The levels between which depths change their colour: a few far ones would leave one to the rest. */
export function depthRange(levels) {
  const counts = new Uint32Array(256);
  for (let at = 0; at < levels.length; at += 4) counts[levels[at]] += 1;
  let [below, low, high] = [0, 0, 0];
  counts.forEach((count, level) => {
    if (below <= FAR * levels.length / 4) low = level;
    if (below < (1 - FAR) * levels.length / 4) high = level;
    below += count;
  });
  return [low, Math.max(high, low + 1)];
}

/** The colour of a share of the range. In metres little is near, and near is bright; other scales grow towards the camera. */
export const depthColour = (share, { unit }) => inferno(unit === "m" ? 1 - share : share);

function inferno(share) {
  const at = share * (INFERNO.length - 1);
  const low = INFERNO[Math.floor(at)];
  const high = INFERNO[Math.ceil(at)];
  return [...low.map((value, index) => value + (high[index] - value) * (at % 1)), 255];
}

function clearCanvas(canvas, width, height) {
  Object.assign(canvas, { width, height });
  return canvas.getContext("2d", { willReadFrequently: true });
}

/** Fill the odd runs, which lie column by column in an image of this height. */
export function fillRuns(counts, height, fill) {
  let at = 0;
  runs(counts).forEach((length, index) => {
    const end = at + length;
    while (index % 2 && at < end) {
      const [x, y] = [Math.floor(at / height), at % height];
      const rows = Math.min(end - at, height - y);
      fill(x, y, rows);
      at += rows;
    }
    at = end;
  });
}

/** Decode COCO's run lengths: groups of 5 bits, from the third run on as differences. */
export function runs(counts) {
  const lengths = [];
  for (let at = 0; at < counts.length;) {
    let [value, shift, bits] = [0, 0, 0x20];
    while (bits & 0x20) {
      bits = counts.charCodeAt(at++) - 48;
      value |= (bits & 0x1f) << shift;
      shift += 5;
    }
    if (bits & 0x10) value |= -1 << shift;
    lengths.push(lengths.length > 2 ? value + lengths[lengths.length - 2] : value);
  }
  return lengths;
}
