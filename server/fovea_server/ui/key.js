// The key of a server that asks for one: the page asks once, and keeps it while its tab is open.

const KEPT = "fovea-key";
let declined = false;

/** Give a client the key that this tab has, if any. */
export function addKey(fovea) {
  const key = sessionStorage.getItem(KEPT);
  if (key) fovea.headers["x-api-key"] = key;
  return fovea;
}

/** Whether a client has a key. */
export const hasKey = (fovea) => "x-api-key" in fovea.headers;

/**
 * Ask the user for a key after a server has refused a request; a user who gives none is left alone.
 * @returns {boolean} true if there is another key to try
 */
export function askForKey(fovea, { status, message }) {
  if (status !== 401 || declined) return false;
  const key = prompt(`${message.split(":")[0]}. Its operator makes one with fovea key add.`)?.trim();
  declined = !key;
  if (key) {
    sessionStorage.setItem(KEPT, key);
    addKey(fovea);
  }
  return Boolean(key);
}
