// The moving picture of a stream, for as long as it is seen.

const PAUSE_MS = 1000;

export class Player {
  #abort = new AbortController();
  #frozen = false;

  /** @param {HTMLElement} view that has the canvas, and takes its shape */
  constructor(fovea, view) {
    this.fovea = fovea;
    this.view = view;
    this.canvas = view.querySelector("canvas");
    this.id = null;
    document.addEventListener("visibilitychange", () => this.show(this.id));
  }

  /** Show a stream; null for none. The picture stays when it is shown again. */
  show(id) {
    this.#abort.abort();
    this.#abort = new AbortController();
    if (id !== this.id) this.#clear();
    this.id = id;
    if (id !== null && !document.hidden) this.#follow(id, this.#abort.signal);
  }

  /** Keep the picture as it is, to draw on it. */
  freeze(on) {
    this.#frozen = on;
  }

  async #follow(id, signal) {
    while (!signal.aborted) {
      try {
        for await (const jpeg of this.fovea.streamVideo(id, { signal })) await this.#draw(jpeg, signal);
      } catch {
        // The list of streams says what is wrong.
      }
      // It was changed, or is over.
      await new Promise((done) => setTimeout(done, PAUSE_MS));
    }
  }

  async #draw(jpeg, signal) {
    const picture = await createImageBitmap(jpeg);
    if (!signal.aborted && !this.#frozen) {
      const { width, height } = picture;
      if (this.canvas.width !== width || this.canvas.height !== height) {
        Object.assign(this.canvas, { width, height });
        this.view.style.aspectRatio = width / height;
        this.view.style.maxWidth = `calc(var(--tallest) * ${width / height})`;
      }
      this.canvas.getContext("2d").drawImage(picture, 0, 0);
      this.view.classList.remove("empty");
    }
    picture.close();
  }

  #clear() {
    this.view.classList.add("empty");
    this.view.removeAttribute("style");
    Object.assign(this.canvas, { width: 0, height: 0 });
  }
}
