// One image, one model: asks the server, and knows when it must be asked again.

import { decodeMap } from "./masks.js";

// What the sliders hide is asked for too, down to this confidence, so that they need no request.
const LEAST_CONF = 0.05;

/**
 * @typedef {{asked: {conf: number, iou: number}, answer?: object, error?: Error,
 *            timing?: Record<string, number>, ms?: number}} Entry
 */

const MOST = 4; // Requests at a time: others wait in the page, and not in the server's queue.
const waiting = [];
let running = 0;

/** The options to send for what the sliders ask. */
export const optionsFor = ({ conf, iou }) => ({ conf: Math.min(conf, LEAST_CONF), iou });

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

async function send(fovea, image, { name, version }, asked, signal) {
  const began = performance.now();
  try {
    const options = { version, signal, ...asked };
    const { images, timing_ms: timing } = await fovea.predict(name, image.blob, options);
    const ms = performance.now() - began;
    const [answer] = images;
    if (answer.tensors) throw new Error(`The outputs of this model are not decoded: ${answer.reason}`);
    await decodeMap(answer);
    return { asked, answer, timing, ms };
  } catch (error) {
    return { asked, error };
  }
}

/** What the sliders ask that an entry, or a request, does not tell; "" if it tells all. */
export function missing({ asked, answer }, { conf, iou }) {
  if (answer && !answer.detections) return "";
  if (conf < asked.conf) return `Below ${asked.conf.toFixed(2)} a new request is needed.`;
  if (iou !== asked.iou) return `For IoU ${iou.toFixed(2)} a new request is needed.`;
  return "";
}
