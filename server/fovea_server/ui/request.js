// Sends an image to a model, and decides whether changed options require a new request.

import { shadeApart } from "./colours.js";
import { labelNameless } from "./found.js";
import { decodeMap } from "./masks.js";
import { enlarge, isLarge, SHRUNK, shrinkImage } from "./shrink.js";
import { TASKS } from "./tasks.js";

// Requests ask for objects down to this confidence. The page hides the objects below the slider, so a moved
// slider mostly needs no request.
const LEAST_CONF = 0.05;

/** Tasks with the options `iou`, `tile` and `overlap`. */
export const TILED = ["detect", "segment", "pose", "obb"];

/**
 * @typedef {{asked: object, answer?: object, error?: Error, timing?: Record<string, number>, ms?: number,
 *            smaller?: {blob: Blob, width: number, height: number, original: Blob} | null}} Entry
 * A finished request. `asked` has the options of the request, `ms` its duration in milliseconds, and
 * `smaller` the image that was sent if it was shrunk.
 */

// Largest number of requests in flight. Further requests wait in the page, not in the server's queue.
const MAX_REQUESTS = 4;
// Timeouts in seconds: without progress of the upload, and for the response after it.
const UPLOAD_S = 30;
const ANSWER_S = 300;
const waiting = [];
let running = 0;

/** Return the options for a request: the server's options, and `shrink` for the page itself. */
export function optionsFor({ conf, iou, tile, overlap, shrink }, { task }) {
  // An unavailable model may have no task. It counts as a detector, so that its last response stays valid.
  const tiled = !task || TILED.includes(task);
  if (task && TASKS[task]?.kind !== "detections") return { shrink };
  // With tiles, the boxes that the server keeps depend on `conf`, so the page cannot apply it afterwards.
  if (tile && tiled) return { conf, iou, tile, overlap, shrink: false };
  return { conf: Math.min(conf, LEAST_CONF), ...(tiled && { iou }), shrink };
}

/**
 * Send an image to a model. Of the waiting requests, the latest is sent first. Never throws.
 * @param {AbortSignal} [signal]
 * @param {(share: number, bytes: number) => void} [onUpload] called with the fraction that is sent, and
 *     with the size of the whole body
 * @returns {Promise<Entry>} finished request, with a response or an error
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

/** Aborts a request after a timeout. A browser would wait forever. */
class Watch {
  #abort = new AbortController();
  #timer;

  get signal() {
    return this.#abort.signal;
  }

  /** Restart the timer. After `seconds` it aborts the request. */
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

/**
 * Describe an option that requires a new request, because the page has another value than a finished request
 * or a request in flight. Return "" if there is none.
 */
export function describeMissing({ asked, answer }, state, choice) {
  const wanted = optionsFor(state, choice);
  const differs = (name) =>
    name === "conf" && !wanted.tile ? wanted.conf < asked.conf : wanted[name] !== asked[name];
  const names = answer && !answer.detections ? [] : ["tile", "overlap", "conf", "iou"];
  const name = [...names, "shrink"].find(differs);
  return name ? WORDS[name](state[name]) : "";
}
