// WebSockets for frames of the camera: one per model, replaced if the options change.

/** Runs models like `Fovea`, over WebSockets. If a WebSocket cannot be opened, it sends HTTP requests. */
export class Lines {
  #fovea;
  #lines = new Map();
  #none = false;

  constructor(fovea) {
    this.#fovea = fovea;
  }

  model(...which) {
    return this.#fovea.model(...which);
  }

  async predict(name, image, { signal, onUpload, ...options }) {
    const line = await this.#line(name, options);
    if (!line) return this.#fovea.predict(name, image, { signal, onUpload, ...options });
    const late = new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
    onUpload(1);
    try {
      return await Promise.race([line.predict(image), late]);
    } catch (error) {
      // An error with a status concerns one frame. Any other error concerns the connection.
      if (!error.status) this.close();
      throw error;
    }
  }

  async #line(name, options) {
    const asked = JSON.stringify(options);
    const former = this.#lines.get(`${name} ${options.version}`);
    if (this.#none || former?.asked === asked) return former?.line ?? null;
    former?.line.then((line) => line?.close());
    const line = this.#fovea.connect(name, options).catch(() => {
      this.#none = true;
      return null;
    });
    this.#lines.set(`${name} ${options.version}`, { asked, line });
    return line;
  }

  close() {
    for (const { line } of this.#lines.values()) line.then((open) => open?.close());
    this.#lines.clear();
  }
}
