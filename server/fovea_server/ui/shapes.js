// Lets the user click the points of a line or zone on a frame, and writes them as the text of a setting.

const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

export class ShapeEditor {
  #points = [];
  #kind = null;

  /**
   * @param {HTMLElement} view element with the frame, and an SVG over it
   * @param {(drawing: boolean) => void} onDraw called when drawing begins and ends
   * @param {(kind: "lines" | "zones", text: string) => void} onApply
   */
  constructor(view, onDraw, onApply) {
    this.view = view;
    this.svg = view.querySelector("svg");
    this.onDraw = onDraw;
    view.addEventListener("click", (event) => this.#click(event));
    at("shape-undo").addEventListener("click", () => this.#set(this.#points.slice(0, -1)));
    at("shape-cancel").addEventListener("click", () => this.close());
    at("shape-apply").addEventListener("click", () => onApply(this.#kind, this.text));
    for (const id of ["shape-name", "shape-classes", "shape-after", "shape-anchor"]) {
      at(id).addEventListener("input", () => this.#write());
    }
    for (const id of ["shape-option", "shape-setting"]) {
      at(id).addEventListener("click", () => this.#copy(at(id)));
    }
    new ResizeObserver(() => this.#draw()).observe(view);
  }

  get drawing() {
    return this.#kind !== null;
  }

  /** Begin a line or zone. `taken` has the names that are in use. */
  open(kind, taken) {
    const stem = kind === "lines" ? "line" : "zone";
    let number = 1;
    while (taken.includes(`${stem}${number}`)) number += 1;
    at("shape-name").value = `${stem}${number}`;
    at("shape-after").parentElement.hidden = kind === "lines";
    for (const id of ["shape-classes", "shape-after"]) at(id).value = "";
    at("shape-title").textContent = kind === "lines" ? "New line" : "New zone";
    at("shape").hidden = false;
    this.#kind = kind;
    this.view.classList.add("drawing");
    this.onDraw(true);
    this.#set([]);
  }

  close() {
    if (!this.drawing) return;
    this.#kind = null;
    at("shape").hidden = true;
    this.view.classList.remove("drawing");
    this.#set([]);
    this.onDraw(false);
  }

  /** Return the text of the setting, for example `door=0.1,0.6,0.9,0.6:classes=person`. */
  get text() {
    const points = this.#points.flat().map((each) => Number(each.toFixed(3)));
    const options = [["classes", "shape-classes"], ["anchor", "shape-anchor"], ["after", "shape-after"]]
      .map(([key, id]) => [key, at(id).value.replaceAll(" ", "")])
      .filter(([key, value]) => value && (key !== "after" || this.#kind === "zones"));
    return [`${at("shape-name").value}=${points}`, ...options.map((each) => each.join("="))].join(":");
  }

  #click(event) {
    if (!this.drawing) return;
    const { left, top, width, height } = this.view.getBoundingClientRect();
    const point = [(event.clientX - left) / width, (event.clientY - top) / height];
    // A third point of a line replaces its end.
    const kept = this.#kind === "lines" ? this.#points.slice(0, 1) : this.#points;
    this.#set([...kept, point]);
  }

  #set(points) {
    this.#points = points;
    this.#draw();
    if (this.drawing) this.#write();
  }

  #write() {
    const flag = this.#kind === "lines" ? "--line" : "--zone";
    const least = this.#kind === "lines" ? 2 : 3;
    const missing = least - this.#points.length;
    const whole = missing <= 0 && at("shape-name").checkValidity();
    at("shape-hint").textContent = missing > 0
      ? `Click ${missing} more ${missing === 1 ? "point" : "points"} on the picture.`
      : this.#kind === "lines" ? "The arrow shows the direction that counts as in. To reverse it, draw the line from its other end." : "Click more points, or apply the zone.";
    at("shape-option").textContent = whole ? `${flag} ${this.text}` : "";
    at("shape-setting").textContent = whole ? `${this.#kind} = ["${this.text}"]` : "";
    for (const id of ["shape-option", "shape-setting"]) at(id).parentElement.hidden = !whole;
    at("shape-apply").disabled = !whole;
    at("shape-undo").disabled = !this.#points.length;
  }

  #draw() {
    const { width, height } = this.view.getBoundingClientRect();
    const points = this.#points.map(([x, y]) => [x * width, y * height]);
    const shape = points.length > 2 ? "polygon" : "polyline";
    const made = points.length > 1 ? [element(shape, { class: "shape", points: points.join(" ") })] : [];
    if (this.#kind === "lines" && points.length === 2) made.push(arrow(...points));
    this.svg.replaceChildren(...made, ...points.map(([cx, cy]) => element("circle", { class: "corner", cx, cy, r: 5 })));
  }

  async #copy(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    at("shape-hint").textContent = "Copied.";
  }
}

/** Draw the direction that counts as in: from the right of a line to its left, seen from its first point. */
function arrow([x1, y1], [x2, y2]) {
  const [across, down] = [x2 - x1, y2 - y1];
  const length = Math.hypot(across, down) || 1;
  const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2];
  const [dx, dy] = [(24 * down) / length, (-24 * across) / length];
  const [tx, ty] = [x + dx, y + dy];
  const side = (way) => `${tx - 0.4 * dx - way * 0.3 * dy},${ty - 0.4 * dy + way * 0.3 * dx}`;
  return element("path", { class: "shape", d: `M${x},${y} L${tx},${ty} M${side(1)} L${tx},${ty} L${side(-1)}` });
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
