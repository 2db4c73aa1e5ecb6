// Zooms and pans all images at once, so that compared images show the same part.

const MAX_ZOOM = 12;
const STEP = 1.5;
// Distance that an arrow key pans, as a fraction of the view.
const PAN = 0.15;
// Height of a line in pixels, for wheels that report lines.
const LINE_PX = 16;

export class Zoom {
  #panes;
  // The scale, and the place of the image's top left corner as a fraction of the view.
  #at = { scale: 1, x: 0, y: 0 };
  #fingers = new Map();

  /** @param {HTMLElement} panes element with the views, and with buttons that have `data-zoom` */
  constructor(panes) {
    this.#panes = panes;
    panes.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    panes.addEventListener("dblclick", (event) => {
      const view = viewOf(event);
      if (view) this.#around(event, view, this.#at.scale > 1 ? 0 : 3);
    });
    panes.addEventListener("click", ({ target }) => this.key({ in: "+", out: "-", fit: "0" }[target.dataset.zoom]));
    panes.addEventListener("pointerdown", (event) => {
      const view = viewOf(event);
      if (!view || event.button) return;
      view.setPointerCapture(event.pointerId);
      this.#fingers.set(event.pointerId, event);
    });
    panes.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) {
      panes.addEventListener(end, ({ pointerId }) => this.#fingers.delete(pointerId));
    }
    // Two fingers zoom the image, not the page.
    panes.addEventListener("touchmove", (event) => event.touches.length > 1 && event.preventDefault(), { passive: false });
    this.reset();
  }

  reset() {
    this.#show({ scale: 1, x: 0, y: 0 });
  }

  /** Zoom with a key. Return false if the key does not zoom. */
  key(key) {
    const factor = { "+": STEP, "=": STEP, "-": 1 / STEP, 0: 0 }[key];
    if (factor !== undefined) this.#zoom(factor, 0.5, 0.5);
    return factor !== undefined;
  }

  /** Pan with an arrow key. Return false for other keys, and if the whole image is visible. */
  pan(key) {
    const [x, y] = { ArrowLeft: [PAN, 0], ArrowRight: [-PAN, 0], ArrowUp: [0, PAN], ArrowDown: [0, -PAN] }[key] ?? [];
    if (x === undefined || this.#at.scale === 1) return false;
    this.#show({ ...this.#at, x: this.#at.x + x, y: this.#at.y + y });
    return true;
  }

  #wheel(event) {
    const view = viewOf(event);
    const pixels = event.deltaY * (event.deltaMode ? LINE_PX : 1);
    // The wheel scrolls the page if the image cannot become smaller.
    if (!view || (pixels > 0 && this.#at.scale === 1 && !event.ctrlKey)) return;
    event.preventDefault();
    // Browsers report a pinch on a touchpad as small turns of the wheel with Control pressed.
    this.#around(event, view, Math.exp(-pixels * (event.ctrlKey ? 0.01 : 0.002)));
  }

  #move(event) {
    const former = this.#fingers.get(event.pointerId);
    if (!former) return;
    const view = event.target.closest(".view");
    const other = [...this.#fingers.values()].find((each) => each !== former);
    this.#fingers.set(event.pointerId, event);
    const { width, height } = view.getBoundingClientRect();
    // The point between two fingers moves half as far as one finger.
    const share = other ? 0.5 : 1;
    const { scale, x, y } = this.#at;
    this.#show({
      scale,
      x: x + (share * (event.clientX - former.clientX)) / width,
      y: y + (share * (event.clientY - former.clientY)) / height,
    });
    if (!other) return;
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    const middle = { clientX: (event.clientX + other.clientX) / 2, clientY: (event.clientY + other.clientY) / 2 };
    this.#around(middle, view, apart(event) / Math.max(1, apart(former)));
  }

  #around({ clientX, clientY }, view, factor) {
    const { left, top, width, height } = view.getBoundingClientRect();
    this.#zoom(factor, (clientX - left) / width, (clientY - top) / height);
  }

  /** Zoom around a point. `x` and `y` are fractions of the view. */
  #zoom(factor, x, y) {
    const at = this.#at;
    const scale = clamp(at.scale * factor, 1, MAX_ZOOM);
    const grown = scale / at.scale;
    this.#show({ scale, x: x - (x - at.x) * grown, y: y - (y - at.y) * grown });
  }

  #show({ scale, x, y }) {
    this.#at = { scale, x: clamp(x, 1 - scale, 0), y: clamp(y, 1 - scale, 0) };
    const { style, classList } = this.#panes;
    for (const [name, value] of Object.entries(this.#at)) style.setProperty(`--${name}`, value);
    classList.toggle("zoomed", scale > 1);
    for (const each of this.#panes.querySelectorAll("[data-zoom=fit]")) each.textContent = `${Math.round(100 * scale)} %`;
  }
}

/** Return the view of an event, or null if the event is on a control over the image. */
const viewOf = ({ target }) => (target.closest("button, label") ? null : target.closest(".view:not(.empty)"));

const clamp = (value, least, most) => Math.max(least, Math.min(value, most));
