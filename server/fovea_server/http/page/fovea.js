/**
 * Fovea's client for browsers, Node 18 or newer, Deno and Bun: one file without dependencies.
 *
 *     import { Fovea } from "./fovea.js";
 *     const fovea = new Fovea("http://127.0.0.1:8000");
 *     const { images } = await fovea.predict("yolov8n", file, { conf: 0.4 });
 *
 * Its types are in fovea.d.ts, which TypeScript finds beside it.
 */

/** A request that failed: `code` is for programs, `message` for people, `hint` says what to do. */
export class FoveaError extends Error {
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
  /** A server at an address, the key that it asks for, and headers to send with each request. */
  constructor(url, { apiKey, headers = {} } = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.headers = { ...(apiKey && { Authorization: `Bearer ${apiKey}` }), ...headers };
  }

  /** Find what is on one encoded image, e.g. a JPEG, or on each of several. */
  async predict(model, image, options = {}) {
    return (await this.#post(model, image, options, "application/json")).json();
  }

  /** Draw what is found into the image; a JPEG. */
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

  #post(model, image, { version, timeoutMs, signal, onUpload, ...options }, accept) {
    const headers = { Accept: accept };
    if (timeoutMs !== undefined) headers["X-Request-Timeout-Ms"] = String(timeoutMs);
    const path = `${modelPath(model, version)}/predict${query(options)}`;
    const body = Array.isArray(image) ? form(image) : image;
    return this.#send(path, { method: "POST", body, headers, signal, onUpload });
  }

  async #send(path, { headers, onUpload, ...request } = {}) {
    let response;
    try {
      const all = { ...request, headers: { ...this.headers, ...headers } };
      const send = onUpload && globalThis.XMLHttpRequest ? upload : fetch;
      response = await send(this.url + path, all, onUpload);
    } catch {
      request.signal?.throwIfAborted();
      throw new FoveaError(`${this.url} does not answer`, {
        code: "connection_failed",
        hint: `is the server running, and may this page or program reach it?${elsewhere(this.url)}`,
      });
    }
    if (!response.ok) throw await refused(response);
    return response;
  }
}

/** Send as `fetch`, which does not tell how much of the body is sent. */
function upload(url, { method, headers, body, signal }, onUpload) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const request = new XMLHttpRequest();
    request.open(method, url);
    request.responseType = "blob";
    for (const header of Object.entries(headers)) request.setRequestHeader(...header);
    request.upload.onprogress = ({ loaded, total }) => onUpload(loaded / total);
    request.onload = () => {
      const { status, statusText } = request;
      const retryAfter = request.getResponseHeader("retry-after");
      const told = retryAfter === null ? {} : { "retry-after": retryAfter };
      resolve(new Response(request.response, { status, statusText, headers: told }));
    };
    request.onerror = request.onabort = reject;
    signal?.addEventListener("abort", () => request.abort());
    request.send(body);
  });
}

/** Browsers do not tell pages why they got no answer. */
function elsewhere(url) {
  const here = globalThis.location?.origin;
  if (!here || !url.includes("://") || here === new URL(url).origin) return "";
  // A page that was opened as a file has no origin.
  const origin = here === "null" ? "'*'" : here;
  return ` \`fovea serve --cors-origin ${origin}\` lets pages of this address use it.`;
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
