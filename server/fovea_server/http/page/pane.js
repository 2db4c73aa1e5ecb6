// One model on the current image: its picker, drawing, timings and engine card.

import { cardRows } from "./card.js";
import { draw, light } from "./draw.js";

const STAGES = ["decode", "letterbox", "queue", "infer", "postprocess"];

export class Pane {
  /**
   * @param {import("./choices.js").Choice[]} choices
   * @param {(pane: Pane) => void} onChoice the user has picked another model
   */
  constructor(choices, chosen, title, onChoice) {
    const template = document.getElementById("pane").content.cloneNode(true);
    this.element = template.firstElementChild;
    const find = (selector) => this.element.querySelector(selector);
    this.view = find(".view");
    this.image = find("img");
    this.layers = { canvas: find("canvas"), svg: find("svg") };
    this.problem = find(".problem");
    this.unshown = find(".unshown");
    this.timing = find(".timing");
    this.card = find(".card");
    this.facts = find(".facts");
    this.picker = find("select");
    this.choices = choices;
    this.model = null;
    this.last = null;
    this.picker.setAttribute("aria-label", title);
    this.picker.append(...choices.map(({ label, reason }) => {
      const option = new Option(label);
      option.disabled = reason !== null;
      option.title = reason ?? "";
      return option;
    }));
    this.picker.selectedIndex = choices.indexOf(chosen);
    this.picker.addEventListener("change", () => onChoice(this));
    new ResizeObserver(() => this.redraw()).observe(this.view);
  }

  get choice() {
    return this.choices[this.picker.selectedIndex];
  }

  /** Show the engine card of the chosen model, as the server describes it. */
  describe(model) {
    this.model = model;
    this.card.hidden = false;
    const facts = [model.task, model.precision?.toUpperCase(), model.backend];
    this.facts.textContent = facts.filter(Boolean).join(" · ");
    this.card.querySelector("dl").replaceChildren(...cardRows(model).flatMap(([term, text]) => [
      Object.assign(document.createElement("dt"), { textContent: term }),
      Object.assign(document.createElement("dd"), { textContent: text }),
    ]));
    this.redraw();
  }

  /** Show an image, before and while a model looks at it. */
  show(image) {
    const ratio = image.width / image.height;
    this.view.classList.remove("empty");
    this.view.style.aspectRatio = ratio;
    this.view.style.maxWidth = `calc(var(--tallest) * ${ratio})`;
    this.image.hidden = false;
    this.unshown.hidden = !image.unshown;
    if (this.image.src !== image.url) this.image.src = image.url;
    this.image.alt = `${image.name}, ${image.width} by ${image.height} pixels`;
  }

  /**
   * Show what the model answered.
   * @param {{answer?: object, error?: Error, timing?: object, ms?: number}} entry
   * @param {object[]} items those of the answer to draw
   * @param {Set<object>} alone those that the other model has not
   */
  report(entry, items, alone) {
    this.view.setAttribute("aria-busy", String(!entry));
    this.problem.hidden = !entry?.error;
    if (entry?.error) this.problem.textContent = problemText(entry.error);
    this.timing.hidden = !entry?.timing;
    if (entry?.timing) this.time(entry.timing, entry.ms);
    this.last = entry?.answer ? [entry.answer, items, alone] : null;
    this.redraw();
  }

  light(item) {
    light(this.layers.svg, item);
  }

  redraw() {
    const { canvas, svg } = this.layers;
    if (!this.last) {
      canvas.width = 0;
      svg.replaceChildren();
      return;
    }
    const [answer, items, alone] = this.last;
    draw(this.layers, answer, items, { bones: this.model?.card?.skeleton?.bones ?? [], alone });
  }

  time(timing, ms) {
    const parts = STAGES.map((name) => [name, timing[name]]);
    const known = parts.reduce((sum, [, each]) => sum + each, 0);
    // What is between the stages, and on the way to the server and back.
    parts.push(["network", Math.max(0, ms - known)]);
    const shown = parts.filter(([, each]) => each >= 0.05);
    const texts = shown.map(([name, each]) => `${name} ${each.toFixed(1)} ms`);
    const bar = this.timing.querySelector(".stages");
    bar.setAttribute("aria-label", `${ms.toFixed(0)} ms: ${texts.join(", ")}`);
    bar.replaceChildren(...shown.map(([name, each]) => {
      const part = Object.assign(document.createElement("span"), { className: name });
      part.style.flexGrow = each;
      return part;
    }));
    this.timing.querySelector(".legend").replaceChildren(...shown.map(([name, each]) => {
      const line = Object.assign(document.createElement("li"), { className: name });
      line.append(name, Object.assign(document.createElement("b"), { textContent: `${each.toFixed(1)} ms` }));
      return line;
    }));
  }
}

function problemText({ message, hint, code }) {
  return [message, hint, code && `(${code})`].filter(Boolean).join(" ");
}
