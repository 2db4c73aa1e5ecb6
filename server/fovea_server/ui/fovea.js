/**
 * Fovea's client for browsers, Node 18 or newer, Deno and Bun: one file without dependencies.
 *
 *     import { Fovea } from "./fovea.js";
 *     const fovea = new Fovea("http://127.0.0.1:8000");
 *     const { images } = await fovea.predict("yolov8n", file, { conf: 0.4 });
 *
 * Its types are in fovea.d.ts, which TypeScript finds beside it.
 */

/** A failed request: `code` is for programs, `message` for people, `hint` has the next step. */
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
  /** Make a client of the server at a URL. `headers` are sent with each request. */
  constructor(url, { apiKey, headers = {} } = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.headers = { ...(apiKey && { Authorization: `Bearer ${apiKey}` }), ...headers };
  }

  /** Run a model on an encoded image, such as a JPEG, or on several. */
  async predict(model, image, options = {}) {
    return (await this.#post(model, "predict", image, options)).json();
  }

  /** Draw the results into the image. Returns a JPEG. */
  async annotate(model, image, options = {}) {
    return (await this.#post(model, "predict", image, options, "image/jpeg")).blob();
  }

  /** Find the `k` images of an index that are most similar to each image. */
  async search(model, image, options = {}) {
    return (await this.#post(model, "search", image, options)).json();
  }

  /**
   * Run a model on many frames over one connection. Yields responses like `predict`, in order, or
   * `{ error }` for a failed frame. `inFlight` limits the frames in flight, 1 to 8.
   */
  async *stream(model, images, { inFlight = 4, ...options } = {}) {
    const line = await this.connect(model, options);
    const frames = images[Symbol.asyncIterator]?.() ?? images[Symbol.iterator]();
    const asked = [];
    let next = null;
    try {
      for (let over = false; !over || asked.length;) {
        if (!over && asked.length < inFlight) next ??= Promise.resolve(frames.next());
        // Yield a response even if the camera has no next frame yet.
        const taken = await Promise.race([asked[0]?.then(() => null), next].filter(Boolean));
        if (taken === null) {
          const answer = await asked.shift();
          if (answer.error?.code === "connection_failed") throw answer.error;
          yield answer;
          continue;
        }
        [next, over] = [null, taken.done];
        if (!over) asked.push(line.predict(taken.value).catch((error) => ({ error })));
      }
    } finally {
      line.close();
      await frames.return?.();
    }
  }

  /** Open a connection with `predict` and `close`, for callers that cannot use `stream`. */
  async connect(model, { version, timeoutMs, ...options } = {}) {
    const path = `${modelPath(model, version)}/stream${query({ ...options, timeout_ms: timeoutMs })}`;
    const line = await FrameLine.open(this.url + path, this.headers);
    if (line) return line;
    // Browsers hide why a WebSocket fails. An HTTP request shows the reason.
    const error = await this.#send(path).catch((error) => error);
    if (error.status !== 426) throw error;
    throw new FoveaError(`${this.url} cannot be reached by WebSocket`, {
      code: "connection_failed",
      hint: "a proxy may block WebSockets; predict works without them.",
    });
  }

  /** List all models, ready or not: `{name, ready, reason, task, versions, ...}`. */
  async models() {
    return (await (await this.#send("/v1/models")).json()).models;
  }

  /** Get a model with its labels, inputs, outputs and engine card. */
  async model(name, version) {
    return (await this.#send(modelPath(name, version))).json();
  }

  /** Load a version beside the served ones. Keys need the scope `control`. */
  async loadVersion(name, version) {
    return (await this.#send(`${modelPath(name, version)}/load`, { method: "POST" })).json();
  }

  /** Unload a version. Returns the version that answers requests. */
  async unloadVersion(name, version) {
    return (await this.#send(`${modelPath(name, version)}/unload`, { method: "POST" })).json();
  }

  /** Get a model's counters: images, time in each stage, durations of requests. */
  async statistics(name) {
    return (await this.#send(`${modelPath(name)}/statistics`)).json();
  }

  /** Return whether the server, or the named model, is ready. */
  async ready(name) {
    try {
      await this.#send(name === undefined ? "/v1/health/ready" : `${modelPath(name)}/ready`);
      return true;
    } catch (error) {
      if (error instanceof FoveaError && [404, 503].includes(error.status)) return false;
      throw error;
    }
  }

  /** Get the client's key: `{name, scopes, models, ...}`, or null if the server requires none. */
  async key() {
    try {
      return await (await this.#send("/v1/keys/self")).json();
    } catch (error) {
      if (error instanceof FoveaError && error.status === 404) return null;
      throw error;
    }
  }

  /** List the streams: `{id, source, model, state, reason, age_ms, counts, ...}`. */
  async streams() {
    return (await (await this.#send("/v1/streams")).json()).streams;
  }

  /** Start a stream: `{id, source, model, ...}`. */
  async addStream(settings) {
    return (await this.#send("/v1/streams", json("POST", settings))).json();
  }

  /** Restart a stream with changed settings. Null removes a setting. */
  async changeStream(id, settings) {
    return (await this.#send(streamPath(id), json("PATCH", settings))).json();
  }

  /** Stop a stream and delete its events. */
  async removeStream(id) {
    await this.#send(streamPath(id), { method: "DELETE" });
  }

  /** Get the newest frame as a JPEG, with boxes, ids, trails, lines and zones. */
  async streamImage(id) {
    return (await this.#send(`${streamPath(id)}/image`)).blob();
  }

  /** Yield frames like `streamImage` until the stream ends. Slow readers miss some. */
  async *streamVideo(id, { signal } = {}) {
    yield* jpegs(await this.#send(`${streamPath(id)}/video`, { signal }));
  }

  /** Yield the stream's events: new ones, or all after event number `after`. */
  async *streamEvents(id, { signal, ...options } = {}) {
    const headers = { Accept: "application/x-ndjson" };
    yield* lines(await this.#send(`${streamPath(id)}/events${query(options)}`, { headers, signal }));
  }

  #post(model, what, image, { version, timeoutMs, signal, onUpload, ...options }, accept = "application/json") {
    const headers = { Accept: accept };
    if (timeoutMs !== undefined) headers["X-Request-Timeout-Ms"] = String(timeoutMs);
    const path = `${modelPath(model, version)}/${what}${query(options)}`;
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
      throw new FoveaError(`${this.url} does not respond`, {
        code: "connection_failed",
        hint: `check that the server runs, and that this page or program can reach it.${corsHint(this.url)}`,
      });
    }
    if (!response.ok) throw await readError(response);
    return response;
  }
}

/** Queues frames until the server has room. Responses come in order. */
class FrameLine {
  #socket;
  #free;
  #turns = [];
  #asked = [];
  #ended = null;

  constructor(socket, { in_flight }) {
    this.#socket = socket;
    this.#free = in_flight;
    socket.onmessage = ({ data }) => this.#take(JSON.parse(data));
    socket.onclose = ({ reason }) => this.#end(reason);
  }

  /** Resolves to null if the server or a proxy rejects the WebSocket. */
  static open(url, headers) {
    if (!globalThis.WebSocket) {
      throw new FoveaError("this JavaScript runtime has no WebSocket", {
        code: "unsupported",
        hint: "use Node 22 or newer.",
      });
    }
    const address = url.replace(/^http/, "ws");
    // Pages cannot set headers of a WebSocket, but Node can.
    const inPage = globalThis.location !== undefined;
    const socket = inPage ? new WebSocket(address) : new WebSocket(address, { headers });
    const key = inPage && keyIn(headers);
    return new Promise((resolve, reject) => {
      socket.onopen = () => key && socket.send(JSON.stringify({ api_key: key }));
      socket.onmessage = ({ data }) => {
        const hello = JSON.parse(data);
        if (hello.error) reject(frameError(hello));
        else resolve(new FrameLine(socket, hello));
      };
      socket.onerror = socket.onclose = () => resolve(null);
    });
  }

  /** Send a frame in its turn. Responds and throws like `Fovea.predict`. */
  async predict(image) {
    if (this.#free) this.#free -= 1;
    else await new Promise((turn) => this.#turns.push(turn));
    if (this.#ended) throw this.#ended;
    return new Promise((resolve, reject) => {
      this.#asked.push({ resolve, reject });
      this.#socket.send(image);
    });
  }

  close() {
    this.#socket.close();
    this.#end("the client closed it");
  }

  #take(answer) {
    if (answer.frame === undefined || this.#ended) return;
    const { resolve, reject } = this.#asked.shift();
    if (answer.error) reject(frameError(answer));
    else resolve(answer);
    if (this.#turns.length) this.#turns.shift()();
    else this.#free += 1;
  }

  #end(reason) {
    this.#ended ??= new FoveaError(`the connection has ended${reason && `: ${reason}`}`, {
      code: "connection_failed",
    });
    for (const { reject } of this.#asked.splice(0)) reject(this.#ended);
    for (const turn of this.#turns.splice(0)) turn();
  }
}

function keyIn(headers) {
  const given = new Headers(headers);
  return given.get("x-api-key") ?? given.get("authorization")?.replace(/^bearer /i, "");
}

function frameError({ status, retry_after_s: retryAfterS = null, error: { code, message } }) {
  const hint = retryAfterS === null ? "" : `send the request again after ${retryAfterS} s`;
  return new FoveaError(message, { status, code, hint, retryAfterS });
}

/** Send like `fetch`, which cannot report the progress of an upload. */
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

/** Suggest CORS as the cause, because browsers hide the reason. */
function corsHint(url) {
  const here = globalThis.location?.origin;
  if (!here || !url.includes("://") || here === new URL(url).origin) return "";
  // A page that was opened as a file has no origin.
  const origin = here === "null" ? "'*'" : here;
  return ` Pages from another address need \`fovea serve --cors-origin ${origin}\`.`;
}

async function readError(response) {
  const retryAfter = response.headers.get("retry-after");
  const body = await response.json().catch(() => ({}));
  const { code = `http_${response.status}`, message = response.statusText, hint } =
    body.error instanceof Object ? body.error : {};
  return new FoveaError(message || `HTTP ${response.status}`, {
    status: response.status,
    code,
    hint: hint ?? (retryAfter === null ? "" : `send the request again after ${retryAfter} s`),
    retryAfterS: retryAfter === null ? null : Number(retryAfter),
  });
}

function modelPath(name, version) {
  const path = `/v1/models/${encodeURIComponent(name)}`;
  return version === undefined || version === null ? path : `${path}/versions/${encodeURIComponent(version)}`;
}

const streamPath = (id) => `/v1/streams/${encodeURIComponent(id)}`;

const json = (method, body) => (
  { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }
);

async function* pieces(response) {
  const reader = response.body.getReader();
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function* lines(response) {
  const decoder = new TextDecoder();
  let held = "";
  for await (const piece of pieces(response)) {
    const whole = (held + decoder.decode(piece, { stream: true })).split("\n");
    held = whole.pop();
    for (const line of whole) yield JSON.parse(line);
  }
}

/** Yield the files of an MJPEG stream. Each has a header with its length. */
async function* jpegs(response) {
  const head = /Content-Length: (\d+)\r\n\r\n/;
  let held = new Uint8Array();
  for await (const piece of pieces(response)) {
    held = join(held, piece);
    for (;;) {
      // In Latin-1, an index in the text is also the index of the byte.
      const found = head.exec(new TextDecoder("latin1").decode(held.subarray(0, 200)));
      if (!found) break;
      const start = found.index + found[0].length;
      const end = start + Number(found[1]);
      if (held.length < end) break;
      yield new Blob([held.subarray(start, end)], { type: "image/jpeg" });
      held = held.slice(end);
    }
  }
}

function join(first, second) {
  const made = new Uint8Array(first.length + second.length);
  made.set(first);
  made.set(second, first.length);
  return made;
}

function query(options) {
  const given = Object.entries(options).filter(([, value]) => (value ?? null) !== null)
    .map(([name, value]) => [name, Array.isArray(value) ? value.map(quote).join(",") : value]);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Quote a class name, which may contain commas. */
const quote = (each) => (typeof each === "string" ? `"${each.replaceAll('"', '""')}"` : each);

function form(images) {
  const made = new FormData();
  for (const image of images) made.append("file", new Blob([image]), "image");
  return made;
}
