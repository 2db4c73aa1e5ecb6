/**
 * Fovea's client for browsers, Node 18 or newer, Deno and Bun: one file without dependencies.
 *
 *     import { Fovea } from "./fovea.js";
 *     const fovea = new Fovea("http://127.0.0.1:8000");
 *     const { images } = await fovea.predict("yolov8n", file, { conf: 0.4 });
 *
 * @typedef {{x1: number, y1: number, x2: number, y2: number}} Box
 * @typedef {{name: string, x: number, y: number, score: number}} Keypoint
 * @typedef {{size: [number, number], counts: string}} RunLengths
 * @typedef {{size: [number, number], left: number, top: number, png: string}} CutOut
 * @typedef {{class_id: number, class_name: string, score: number}} ScoredClass
 * @typedef {ScoredClass & {
 *   box: Box, mask?: RunLengths | number[][] | CutOut | null, keypoints?: Keypoint[],
 *   rotated?: {cx: number, cy: number, w: number, h: number, angle: number},
 *   corners?: {x: number, y: number}[],
 * }} Detection
 * @typedef {{
 *   class_id: number, class_name: string, pixels: number, share: number,
 *   mask?: RunLengths | number[][],
 * }} ClassArea
 * @typedef {{
 *   width: number, height: number, orientation: number,
 *   detections?: Detection[], classes?: ScoredClass[],
 *   semantic?: {classes: ClassArea[], png?: string},
 *   saliency?: {share: number, png?: string},
 *   depth?: {min: number, max: number, unit: string | null,
 *            png?: string, scale?: number, offset?: number},
 * }} ImageAnswer
 * @typedef {{
 *   model: string, version: string, task: string, timing_ms: Record<string, number>,
 *   images: (ImageAnswer & {error?: {code: string, message: string}})[],
 * }} Prediction
 * @typedef {{
 *   conf?: number, iou?: number, classes?: string | (string | number)[], max_det?: number,
 *   top_k?: number, agnostic?: boolean, mask?: "rle" | "polygon" | "png" | "none",
 *   tile?: string | number, overlap?: number,
 *   version?: string | number, timeoutMs?: number, signal?: AbortSignal,
 * }} PredictOptions
 */

/** A request that failed: `code` is for programs, `message` for people, `hint` says what to do. */
export class FoveaError extends Error {
  /** @param {{status?: number, code: string, hint?: string, retryAfterS?: number | null}} about */
  constructor(message, { status = 0, code, hint = "", retryAfterS = null }) {
    super(message);
    this.name = "FoveaError";
    this.status = status;
    this.code = code;
    this.hint = hint;
    this.retryAfterS = retryAfterS;
  }
}

export class Fovea {
  /**
   * @param {string | URL} url address of the server
   * @param {{headers?: Record<string, string>}} [about] sent with each request, e.g. a secret
   */
  constructor(url, { headers = {} } = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.headers = headers;
  }

  /**
   * Find what is on one image, or on each of several.
   * @param {string} model
   * @param {Blob | BufferSource | (Blob | BufferSource)[]} image encoded, e.g. a JPEG
   * @param {PredictOptions} [options]
   * @returns {Promise<Prediction>}
   */
  async predict(model, image, options = {}) {
    return (await this.#post(model, image, options, "application/json")).json();
  }

  /**
   * Draw what is found into the image.
   * @param {string} model
   * @param {Blob | BufferSource} image
   * @param {PredictOptions} [options]
   * @returns {Promise<Blob>} a JPEG
   */
  async annotate(model, image, options = {}) {
    return (await this.#post(model, image, options, "image/jpeg")).blob();
  }

  /** All models, also those that are not ready: `{name, ready, reason, task, versions, ...}`. */
  async models() {
    return (await (await this.#send("/v1/models")).json()).models;
  }

  /** One model with labels, inputs, outputs and engine card. */
  async model(name, version) {
    return (await this.#send(modelPath(name, version))).json();
  }

  /** Counters of a model: images, time in each stage, how long requests took. */
  async statistics(name) {
    return (await this.#send(`${modelPath(name)}/statistics`)).json();
  }

  /** True if the server, or the named model, takes requests. */
  async ready(name) {
    try {
      await this.#send(name === undefined ? "/v1/health/ready" : `${modelPath(name)}/ready`);
      return true;
    } catch (error) {
      if (error instanceof FoveaError && [404, 503].includes(error.status)) return false;
      throw error;
    }
  }

  #post(model, image, { version, timeoutMs, signal, ...options }, accept) {
    const headers = { Accept: accept };
    if (timeoutMs !== undefined) headers["X-Request-Timeout-Ms"] = String(timeoutMs);
    const path = `${modelPath(model, version)}/predict${query(options)}`;
    const body = Array.isArray(image) ? form(image) : image;
    return this.#send(path, { method: "POST", body, headers, signal });
  }

  async #send(path, { headers, ...request } = {}) {
    let response;
    try {
      const all = { ...this.headers, ...headers };
      response = await fetch(this.url + path, { ...request, headers: all });
    } catch {
      request.signal?.throwIfAborted();
      throw new FoveaError(`${this.url} does not answer`, {
        code: "connection_failed",
        hint: "is the server running, and may this page or program reach it?",
      });
    }
    if (!response.ok) throw await refused(response);
    return response;
  }
}

async function refused(response) {
  const retryAfter = response.headers.get("retry-after");
  const body = await response.json().catch(() => ({}));
  const { code = `http_${response.status}`, message = response.statusText, hint } =
    body.error instanceof Object ? body.error : {};
  return new FoveaError(message || `HTTP ${response.status}`, {
    status: response.status,
    code,
    hint: hint ?? (retryAfter === null ? "" : `send it again after ${retryAfter} s`),
    retryAfterS: retryAfter === null ? null : Number(retryAfter),
  });
}

function modelPath(name, version) {
  const path = `/v1/models/${encodeURIComponent(name)}`;
  return version === undefined || version === null ? path : `${path}/versions/${encodeURIComponent(version)}`;
}

function query(options) {
  const given = Object.entries(options).filter(([, value]) => (value ?? null) !== null)
    .map(([name, value]) => [name, Array.isArray(value) ? value.map(quoted).join(",") : value]);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** A name may have commas of its own. */
const quoted = (each) => (typeof each === "string" ? `"${each.replaceAll('"', '""')}"` : each);

function form(images) {
  const made = new FormData();
  for (const image of images) made.append("file", new Blob([image]), "image");
  return made;
}
