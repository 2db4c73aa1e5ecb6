// Lists streams with their states and figures, and the counts of one stream.

import { button, make, refill } from "./dom.js";

const COUNTED = ["in", "out", "objects"];

/** List streams. `chosen` is the id of the selected stream. */
export function showStreams(container, streams, chosen, onChoose) {
  refill(container, streams.map((stream) => {
    const { id, state, reason, source, model } = stream;
    const name = make("span", { className: "name", textContent: id });
    const badge = make("mark", { textContent: state });
    badge.dataset.state = state;
    const about = make("small", { textContent: `${model} on ${source}` });
    const figures = make("span", { className: "figures", textContent: figuresOf(stream) });
    const made = button("stream", id, () => onChoose(id), name, badge, figures, about);
    if (reason) made.append(make("small", { className: "reason", textContent: reason }));
    made.setAttribute("aria-pressed", id === chosen);
    return make("li", {}, made);
  }));
}

function figuresOf({ rate, age_ms: age, frames, enabled, reconnects }) {
  if (enabled === false) return "";
  return [
    `${rate.toFixed(1)}/s`,
    age === null ? "" : `${Math.round(age)} ms old`,
    frames.broken ? `${frames.broken} broken` : "",
    frames.dropped ? `${frames.dropped} of ${frames.came} dropped` : "none dropped",
    reconnects ? `${reconnects} reconnects` : "",
  ].filter(Boolean).join(" · ");
}

/** List the lines and zones of a stream with their counts. `onRemove` is null if the user may not change it. */
export function showCounts(container, { counts = {}, lines = [], zones = [] }, onRemove) {
  const kinds = Object.entries({ lines, zones });
  const shapes = kinds.flatMap(([kind, texts]) => [texts].flat().map((text) => ({ kind, text })));
  refill(container, shapes.map(({ kind, text }) => {
    const name = text.split("=")[0];
    const parts = COUNTED.filter((key) => key in (counts[name] ?? {}))
      .map((key) => make("b", { textContent: `${key === "objects" ? "" : `${key} `}${counts[name][key]}` }));
    const options = text.split(":").slice(1).join(", ");
    const row = make("li", { className: "counted" }, make("span", { textContent: name }), ...parts);
    if (onRemove) {
      const remove = button("quiet", text, () => onRemove(kind, text), "Remove");
      remove.ariaLabel = `Remove ${name}`;
      row.append(remove);
    }
    if (options) row.append(make("small", { textContent: options }));
    return row;
  }));
}
