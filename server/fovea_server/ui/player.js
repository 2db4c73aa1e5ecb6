// Plays the video of a stream while the page is visible.

const PAUSE_MS = 1000;

export class Player {
  #abort = new AbortController();
  #frozen = false;

  /** @param {HTMLElement} view element with the canvas; it gets the aspect ratio of the video */
  constructor(fovea, view) {
    this.fovea = fovea;
    this.view = view;
    this.canvas = view.querySelector("canvas");
    this.id = null;
    document.addEventListener("visibilitychange", () => this.show(this.id));
  }

  /** Play a stream. Null stops the video. The last frame stays if the same stream is played again. */
  show(id) {
    this.#abort.abort();
    this.#abort = new AbortController();
    if (id !== this.id) this.#clear();
    this.id = id;
    if (id !== null && !document.hidden) this.#follow(id, this.#abort.signal);
  }

  /** Freeze the current frame, so that the user can draw on it. */
  freeze(on) {
    this.#frozen = on;
  }

  async #follow(id, signal) {
    while (!signal.aborted) {
      try {
        for await (const jpeg of this.fovea.streamVideo(id, { signal })) await this.#draw(jpeg, signal);
      } catch {
        // The list of streams shows the error.
      }
      // The video ends when the stream is changed or deleted, so wait and try again.
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
