// Lists the latest events of a stream.

import { make } from "./dom.js";

const MAX_EVENTS = 50;
// The list begins with events among the last 200 of the log.
const LAST = -200;
// All kinds but `count`: the page shows the counts beside the events.
const KINDS = "appeared,lost,crossed,entered,left";
const PAUSE_MS = 2000;

export class EventList {
  #abort = new AbortController();
  #after;

  constructor(fovea, container) {
    this.fovea = fovea;
    this.container = container;
    this.id = null;
    // Browsers limit the connections to a server, so a hidden tab closes its connection.
    document.addEventListener("visibilitychange", () => this.#resume());
  }

  /** List the events of a stream. Null clears the list. */
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
        // The list of streams shows the error.
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

/** Describe an event, for example "person #3 crossed door, in". */
function describeEvent({ kind, class_name, track_id, name, direction, duration_s: seconds }) {
  const where = [name, direction].filter(Boolean).join(", ");
  const lasted = seconds === undefined ? "" : `after ${seconds.toFixed(1)} s`;
  return [class_name, `#${track_id}`, kind, where, lasted].filter(Boolean).join(" ");
}
