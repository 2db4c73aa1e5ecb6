// One image, one model: asks the server, and knows when it must be asked again.

import { shadeApart } from "./colours.js";
import { labelNameless } from "./found.js";
import { decodeMap } from "./masks.js";

// What the sliders hide is asked for too, down to this confidence, so that they need no request.
const LEAST_CONF = 0.05;

/** Tasks that take `tile` and `overlap`. */
export const TILED = ["detect", "segment", "pose", "obb"];

/**
 * @typedef {{asked: object, answer?: object, error?: Error,
 *            timing?: Record<string, number>, ms?: number}} Entry
 * with the options that were asked for
 */

const MOST = 4; // Requests at a time: others wait in the page, and not in the server's queue.
const waiting = [];
let running = 0;

/** The options to send to a model for what the user has set. */
export function optionsFor({ conf, iou, tile, overlap }, { task }) {
  // Which box stands for an object on several tiles depends on all that is found on them.
  if (tile && TILED.includes(task)) return { conf, iou, tile, overlap };
  return { conf: Math.min(conf, LEAST_CONF), iou };
}

/**
 * Ask a model about an image, once it is its turn; the latest is the first. Never throws.
 * @returns {Promise<Entry>} an error is part of it
 */
export async function ask(fovea, image, choice, asked, signal) {
  if (running === MOST) await new Promise((turn) => waiting.push(turn));
  else running += 1;
  const entry = await send(fovea, image, choice, asked, signal);
  if (waiting.length) waiting.pop()();
  else running -= 1;
  return entry;
}

async function send(fovea, image, { name, version, names }, asked, signal) {
  const began = performance.now();
  try {
    const options = { version, signal, ...asked };
    const { images, timing_ms: timing } = await fovea.predict(name, image.blob, options);
    const ms = performance.now() - began;
    const [answer] = images;
    if (answer.tensors) throw new Error(`The outputs of this model are not decoded: ${answer.reason}`);
    labelNameless(answer, names);
    shadeApart(answer.detections ?? []);
    await decodeMap(answer);
    return { asked, answer, timing, ms };
  } catch (error) {
    return { asked, error };
  }
}

const WORDS = {
  conf: (value) => `confidence ${value.toFixed(2)}`,
  iou: (value) => `IoU ${value.toFixed(2)}`,
  tile: (value) => (value ? `tiles of ${value}` : "the image without tiles"),
  overlap: (value) => `an overlap of ${value.toFixed(2)}`,
};

/** What is set and an entry, or a request, was not asked for, in words; "" if it tells all. */
export function missing({ asked, answer }, state, choice) {
  if (answer && !answer.detections) return "";
  const wanted = optionsFor(state, choice);
  const differs = (name) =>
    name === "conf" && !wanted.tile ? wanted.conf < asked.conf : wanted[name] !== asked[name];
  const name = ["tile", "overlap", "conf", "iou"].find(differs);
  return name ? WORDS[name](state[name]) : "";
}
