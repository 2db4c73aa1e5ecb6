// What is said: errors, and to screen readers results.

const CALM_MS = 600;
const at = (id) => document.getElementById(id);
let timer = 0;

/** Have a text read aloud once it stays: a slider that moves would drown everything else. */
export function announce(text) {
  clearTimeout(timer);
  timer = setTimeout(() => write(at("said"), text), CALM_MS);
}

/** Say what went wrong outside of any model; null for nothing. */
export function alarm(error) {
  alarmEach(error ? [[error, ""]] : []);
}

/** Say what went wrong with each of some files, a line each, by error and name. */
export function alarmEach(failed) {
  at("alert").hidden = !failed.length;
  const lines = failed.map(([{ message, hint }, name]) => {
    const detail = hint ? `${message}: ${hint}` : message;
    return name ? `${name}: ${detail}` : detail;
  });
  write(at("alert"), lines.join("\n"));
}

/** Write into a live region: the same text once more would be read aloud once more. */
export function write(region, text) {
  if (region.textContent !== text) region.textContent = text;
}
