// Shows one model for the current image: its picker, results, timings and engine card.

import { write } from "./announce.js";
import { cardRows } from "./card.js";
import { ABSENT } from "./choices.js";
import { button, make } from "./dom.js";
import { draw, light } from "./draw.js";
import { examplesOf } from "./examples.js";
import { wireProbe } from "./probe.js";
import { formatSize } from "./sentences.js";

const STAGES = ["decode", "letterbox", "queue", "infer", "postprocess"];

export class Pane {
  /**
   * @param {(pane: Pane, former: object) => void} onChoice called when the user picks another model
   * @param {(file: string) => void} onExample called when the user picks an example
   */
  constructor(title, onChoice, onExample) {
    this.element = document.getElementById("pane").content.cloneNode(true).firstElementChild;
    const find = (selector) => this.element.querySelector(selector);
    this.view = find(".view");
    this.examples = find(".examples");
    this.onExample = onExample;
    this.zoom = find(".zoom");
    this.image = find("img");
    this.layers = { canvas: find("canvas"), svg: find("svg") };
    this.problem = find(".problem");
    this.again = find(".again");
    this.sending = find(".sending");
    this.smaller = find(".smaller");
    this.unshown = find(".unshown");
    this.timing = find(".timing");
    this.card = find(".card");
    this.facts = find(".facts");
    this.picker = find("select");
    this.picker.ariaLabel = title;
    this.picker.onchange = () => {
      const former = this.choice;
      this.choice = this.choices[this.picker.selectedIndex];
      onChoice(this, former);
    };
    this.choice = this.model = this.last = null;
    wireProbe(this.view, this.layers.canvas, find(".probe"), () => this.last?.[0]);
    new ResizeObserver(() => this.drawInto({ svg: this.layers.svg })).observe(find(".picture"));
  }

  /**
   * Offer models. The picked model stays picked even if the server no longer lists it.
   * @param {import("./choices.js").Choice[]} choices
   * @returns {boolean} whether another version answers now, or the model became available or unavailable
   */
  offer(choices, chosen = this.choice) {
    const found = choices.find(({ id }) => id === chosen.id);
    const gone = { ...chosen, group: ABSENT, reason: "no longer served" };
    const former = this.choice;
    this.choice = found ?? gone;
    this.choices = found ? choices : [...choices, gone];
    const made = make("select");
    for (const { id, group, reason, load } of this.choices) {
      if (made.lastChild?.label !== group) made.append(make("optgroup", { label: group }));
      const textContent = reason ? `${id} (${reason})` : load ? `${id} (load it beside)` : id;
      made.lastChild.append(make("option", { disabled: reason !== null, value: id, textContent }));
    }
    // An open list would close if its options were replaced.
    if (made.innerHTML !== this.picker.innerHTML) this.picker.replaceChildren(...made.children);
    this.picker.selectedIndex = this.choices.indexOf(this.choice);
    return former?.key !== this.choice.key || former.reason !== this.choice.reason;
  }

  /** Show the facts and the engine card of a model. `model` is a result of `Fovea.model`. */
  describe(model) {
    this.model = model;
    this.card.hidden = false;
    const facts = [model.task, model.precision?.toUpperCase(), model.backend];
    this.facts.textContent = facts.filter(Boolean).join(" · ");
    this.card.querySelector("dl").replaceChildren(...cardRows(model).flatMap(([term, text]) => [
      make("dt", { textContent: term }),
      make("dd", { textContent: text }),
    ]));
    const examples = examplesOf(model);
    this.examples.hidden = !examples.length;
    this.examples.replaceChildren("or try", ...examples.map(({ title, file }) =>
      button("pill", file, () => this.onExample(file), title)));
    this.redraw();
  }

  /** Show an image, without results. Null clears the pane. */
  show(image) {
    this.view.classList.toggle("empty", !image);
    this.zoom.hidden = this.image.hidden = !image;
    this.unshown.hidden = !image?.unshown;
    if (!image) {
      this.view.removeAttribute("style");
      this.image.removeAttribute("src");
      this.report(undefined, [], new Set(), null);
      return;
    }
    const ratio = image.width / image.height;
    this.view.style.aspectRatio = ratio;
    this.view.style.maxWidth = `calc(var(--tallest) * ${ratio})`;
    if (this.image.src !== image.url) this.image.src = image.url;
    this.image.alt = `${image.name}, ${image.width} by ${image.height} pixels`;
  }

  /**
   * Show the response of the model, or its error.
   * @param {import("./request.js").Entry | undefined} entry
   * @param {object[]} items items of the response to draw
   * @param {Set<object>} alone items that the other model does not have
   * @param {{share?: number, bytes?: number} | null} request request in flight
   */
  report(entry, items, alone, request) {
    this.follow(request);
    this.warn(entry?.error);
    this.again.hidden = !entry?.error;
    this.timing.hidden = !entry?.timing;
    if (entry?.timing) this.time(entry.timing, entry.ms);
    this.smaller.hidden = !entry?.smaller;
    if (entry?.smaller) {
      const { width, height, blob, original } = entry.smaller;
      this.smaller.textContent = `Sent at ${width} × ${height}: ${formatSize(blob.size)} instead of ${formatSize(original.size)}`;
    }
    this.last = entry?.answer ? [entry.answer, items, alone] : null;
    this.redraw();
  }

  /** Show the progress of a request. Null hides the progress. */
  follow(request) {
    this.view.ariaBusy = String(request !== null);
    this.sending.hidden = request === null;
    if (!request) return;
    const { share, bytes } = request;
    const bar = this.sending.querySelector("progress");
    if (share < 1) bar.value = share;
    else bar.removeAttribute("value");
    const percent = `${Math.floor(100 * share)} %`;
    const words = share < 1 ? `Sending ${formatSize(bytes)}: ${percent}` : "Waiting for the response";
    write(this.sending.querySelector("span"), share === undefined ? "Waiting for its turn" : words);
  }

  /** Show why the model is unavailable, or else the error of its request. */
  warn(error) {
    const { name, reason } = this.choice;
    const unserved = reason && `${name} is ${reason}: pick another model, or wait until it is served again.`;
    const text = unserved || (error ? problemText(error) : "");
    this.problem.hidden = !text;
    write(this.problem, text);
  }

  light(item) {
    light(this.layers.svg, item);
  }

  redraw() {
    this.layers.canvas.width = 0;
    this.layers.svg.replaceChildren();
    this.drawInto(this.layers);
  }

  /** Draw the last results, if there are any, into layers of any size. See `draw`. */
  drawInto(layers) {
    if (!this.last) return;
    const [answer, items, alone] = this.last;
    draw(layers, answer, items, { bones: this.model?.card?.skeleton?.bones ?? [], alone });
  }

  time(timing, ms) {
    // The first stage of a pipeline is its detector. STAGES already has the detector's parts.
    const more = Object.entries(timing.stages ?? {}).slice(1).map((entry) => [...entry, "later"]);
    const parts = [...STAGES.map((name) => [name, timing[name]]), ...more];
    const known = parts.reduce((sum, [, each]) => sum + each, 0);
    // The rest is the time between the stages, and on the way to the server and back.
    parts.push(["network", Math.max(0, ms - known)]);
    const shown = parts.filter(([, each]) => each >= 0.05);
    const texts = shown.map(([name, each]) => `${name} ${each.toFixed(1)} ms`);
    const bar = this.timing.querySelector(".stages");
    bar.ariaLabel = `${ms.toFixed(0)} ms: ${texts.join(", ")}`;
    bar.replaceChildren(...shown.map(([name, each, className = name]) => {
      const part = make("span", { className });
      part.style.flexGrow = each;
      return part;
    }));
    this.timing.querySelector(".legend").replaceChildren(...shown.map(([name, each, className = name]) =>
      make("li", { className }, name, make("b", { textContent: `${each.toFixed(1)} ms` }))));
  }
}

function problemText({ message, hint, code }) {
  return [hint ? `${message}: ${hint}` : message, code && `(${code})`].filter(Boolean).join(" ");
}
