// The last events of a stream, as they happen.

import { make } from "./dom.js";

const MAX_EVENTS = 50;
// Of the log, where the page is loaded; counts are listed beside them.
const LAST = -200;
const KINDS = "appeared,lost,crossed,entered,left";
const PAUSE_MS = 2000;

export class EventList {
  #abort = new AbortController();
  #after;

  constructor(fovea, container) {
    this.fovea = fovea;
    this.container = container;
    this.id = null;
    // A browser has few connections to a server, which other tabs need, too.
    document.addEventListener("visibilitychange", () => this.#resume());
  }

  /** Follow a stream; null for none. */
  follow(id) {
    if (id === this.id) return;
    this.id = id;
    this.#after = undefined;
    this.container.replaceChildren();
    this.#resume();
  }

  #resume() {
    this.#abort.abort();
    this.#abort = new AbortController();
    if (this.id !== null && !document.hidden) this.#read(this.id, this.#abort.signal);
  }

  async #read(id, signal) {
    while (!signal.aborted) {
      try {
        const asked = { after: this.#after ?? LAST, kinds: KINDS, signal };
        for await (const event of this.fovea.streamEvents(id, asked)) {
          this.#after = event.event;
          this.#add(event);
        }
      } catch {
        // The list of streams says what is wrong.
      }
      await new Promise((done) => setTimeout(done, PAUSE_MS));
    }
  }

  #add(event) {
    const time = new Date(event.time).toLocaleTimeString();
    this.container.prepend(make("li", {},
      make("time", { dateTime: event.time, textContent: time }),
      make("span", { textContent: describeEvent(event) })));
    while (this.container.children.length > MAX_EVENTS) this.container.lastChild.remove();
  }
}

/** An event in words: "person #3 crossed door, in". */
function describeEvent({ kind, class_name, track_id, name, direction, duration_s: seconds }) {
  const where = [name, direction].filter(Boolean).join(", ");
  const lasted = seconds === undefined ? "" : `after ${seconds.toFixed(1)} s`;
  return [class_name, `#${track_id}`, kind, where, lasted].filter(Boolean).join(" ");
}
