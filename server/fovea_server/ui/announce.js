// Shows errors, and announces results to screen readers.

const CALM_MS = 600;
const at = (id) => document.getElementById(id);
let timer = 0;

/**
 * Announce a text if no other text follows within CALM_MS milliseconds. While a slider moves, each step
 * would otherwise interrupt the screen reader.
 */
export function announce(text) {
  clearTimeout(timer);
  timer = setTimeout(() => write(at("said"), text), CALM_MS);
}

/** Show an error that concerns no single model. Null hides the last error. */
export function alarm(error) {
  alarmEach(error ? [[error, ""]] : []);
}

/** Show pairs of an error and a file name, one per line. An empty list hides the last errors. */
export function alarmEach(failed) {
  at("alert").hidden = !failed.length;
  const lines = failed.map(([{ message, hint }, name]) => {
    const detail = hint ? `${message}: ${hint}` : message;
    return name ? `${name}: ${detail}` : detail;
  });
  write(at("alert"), lines.join("\n"));
}

/** Set the text of a live region if it differs. Screen readers would repeat an equal text. */
export function write(region, text) {
  if (region.textContent !== text) region.textContent = text;
}
