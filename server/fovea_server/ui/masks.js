// Paints masks, maps and vectors onto a canvas of the image's size.

import { colourOf, css } from "./colours.js";
import { vectorOf } from "./tasks.js";

const OPACITY = 0.45;
// Opacity of the black over the background of a saliency map.
const DIMMED = 0.75;
// Names of a background class. In models without class names, class 0 mostly is the background.
const BACKGROUND = ["background", "0"];
// Height of the strip for an embedding, as a fraction of the image's height.
const STRIP = 0.08;
// Fraction of the pixels at each end of the depths that gets the end's colour.
const FAR = 0.01;
// Matplotlib's colour map "inferno", in which equal steps of depth look equal.
const INFERNO = [
  [0, 0, 4], [27, 12, 65], [74, 12, 107], [120, 28, 109], [165, 44, 96],
  [207, 68, 70], [237, 105, 37], [251, 155, 6], [247, 209, 61], [252, 255, 164],
];

/** Paint the masks of these items, the worst first, so that the best are on top. */
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

/** Paint the map of a saliency or depth model. Return false if the response has none. */
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

/**
 * Paint an embedding as a strip along the bottom: red for values above 0, blue for values below. Return
 * false if the response has none.
 */
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

/** Paint the image that an image-to-image model has made. Return false if the response has none. */
export function drawPicture(canvas, { painted }) {
  if (!painted) return false;
  clearCanvas(canvas, painted.width, painted.height).drawImage(painted, 0, 0);
  canvas.style.opacity = 1;
  return true;
}

/**
 * Decode the PNG file of a response. For a map, set `levels` of the response: RGBA values, the map's value
 * being red. For an image of an image-to-image model, set `painted`.
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

/**
 * Return the levels between which depths change their colour. If a few far pixels set the range, all other
 * pixels would have nearly the same colour.
 */
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

/**
 * Return the colour of a fraction of the depth range. Near is bright. Depths in metres grow with the
 * distance from the camera; depths in other units grow towards the camera.
 */
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

/** Call `fill` for the pixels of the odd runs, which form the mask. Runs go down the columns. */
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

/**
 * Decode COCO's run lengths: groups of 5 bits. From the fourth run on, a value is the difference from the
 * run two places before.
 */
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
