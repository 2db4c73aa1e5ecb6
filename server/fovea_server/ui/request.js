// One image, one model: asks the server, and knows when it must be asked again.

import { shadeApart } from "./colours.js";
import { labelNameless } from "./found.js";
import { decodeMap } from "./masks.js";
import { enlarge, isLarge, SHRUNK, shrinkImage } from "./shrink.js";
import { TASKS } from "./tasks.js";

// What the sliders hide is asked for too, down to this confidence, so that they need no request.
const LEAST_CONF = 0.05;

/** Tasks that take `iou`, `tile` and `overlap`. */
export const TILED = ["detect", "segment", "pose", "obb"];

/**
 * @typedef {{asked: object, answer?: object, error?: Error, timing?: Record<string, number>, ms?: number,
 *            smaller?: {blob: Blob, width: number, height: number, original: Blob} | null}} Entry
 * with what was asked for, and the image that was sent if it was a smaller one
 */

const MAX_REQUESTS = 4; // Requests at a time: others wait in the page, and not in the server's queue.
const UPLOAD_S = 30; // The longest pauses, of an upload and before the answer.
const ANSWER_S = 300;
const waiting = [];
let running = 0;

/** What to ask a model for, as the user has set it: options of the server, and whether to `shrink` the image. */
export function optionsFor({ conf, iou, tile, overlap, shrink }, { task }) {
  // A model that is away has none, and its answer stays.
  const tiled = !task || TILED.includes(task);
  if (task && TASKS[task]?.kind !== "detections") return { shrink };
  // Which box stands for an object on several tiles depends on all that is found on them.
  if (tile && tiled) return { conf, iou, tile, overlap, shrink: false };
  return { conf: Math.min(conf, LEAST_CONF), ...(tiled && { iou }), shrink };
}

/**
 * Ask a model about an image, once it is its turn; the latest is the first. Never throws.
 * @param {AbortSignal} [signal]
 * @param {(share: number, bytes: number) => void} [onUpload] told how much of so many bytes is sent
 * @returns {Promise<Entry>} an error is part of it
 */
export async function ask(fovea, image, choice, asked, signal, onUpload) {
  if (running === MAX_REQUESTS) await new Promise((turn) => waiting.push(turn));
  else running += 1;
  const entry = await send(fovea, image, choice, asked, signal, onUpload);
  if (waiting.length) waiting.pop()();
  else running -= 1;
  return entry;
}

async function send(fovea, image, { name, version, names, task }, asked, signal, onUpload) {
  const watch = new Watch();
  const { shrink, ...options } = asked;
  try {
    const model = shrink && SHRUNK.includes(task) && isLarge(image) ? await fovea.model(name, version) : null;
    const sent = (model && await shrinkImage(image, model)) ?? image;
    const onProgress = (share) => {
      if (share < 1) watch.within(UPLOAD_S, "Nothing could be sent");
      else watch.within(ANSWER_S, "There was no response");
      onUpload?.(share, sent.blob.size);
    };
    onProgress(0);
    const began = performance.now();
    const { images, timing_ms: timing } = await fovea.predict(name, sent.blob, {
      version,
      ...options,
      signal: AbortSignal.any([watch.signal, ...(signal ? [signal] : [])]),
      onUpload: onProgress,
    });
    const ms = performance.now() - began;
    const [answer] = images;
    if (answer.tensors) throw new Error(`The outputs of this model are not decoded: ${answer.reason}`);
    if (sent !== image) enlarge(answer, image);
    labelNameless(answer, names);
    shadeApart(answer.detections ?? []);
    await decodeMap(answer);
    return { asked, answer, timing, ms, smaller: sent === image ? null : sent };
  } catch (error) {
    return { asked, error };
  } finally {
    watch.end();
  }
}

/** Gives a request up where nothing more happens: a browser would wait for ever. */
class Watch {
  #abort = new AbortController();
  #timer;

  get signal() {
    return this.#abort.signal;
  }

  /** Wait anew, for so many seconds. */
  within(seconds, what) {
    this.end();
    const error = new Error(`${what} for ${seconds} s`);
    error.hint = "the network or the server may be down; send the image again later.";
    this.#timer = setTimeout(() => this.#abort.abort(error), 1000 * seconds);
  }

  end() {
    clearTimeout(this.#timer);
  }
}

const WORDS = {
  conf: (value) => `confidence ${value.toFixed(2)}`,
  iou: (value) => `IoU ${value.toFixed(2)}`,
  tile: (value) => (value ? `tiles of ${value}` : "the image without tiles"),
  overlap: (value) => `an overlap of ${value.toFixed(2)}`,
  shrink: (value) => (value ? "a smaller image" : "the image in its full size"),
};

/** What is set and an entry, or a request, was not asked for, in words; "" if it tells all. */
export function describeMissing({ asked, answer }, state, choice) {
  const wanted = optionsFor(state, choice);
  const differs = (name) =>
    name === "conf" && !wanted.tile ? wanted.conf < asked.conf : wanted[name] !== asked[name];
  const names = answer && !answer.detections ? [] : ["tile", "overlap", "conf", "iou"];
  const name = [...names, "shrink"].find(differs);
  return name ? WORDS[name](state[name]) : "";
}
