// Asks the user for an API key if the server requires one, and stores it until the tab closes.

const KEPT = "fovea-key";
let declined = false;

/** Add the stored key, if there is one, to a client. */
export function addKey(fovea) {
  const key = sessionStorage.getItem(KEPT);
  if (key) fovea.headers["x-api-key"] = key;
  return fovea;
}

/** Return whether a client has a key. */
export const hasKey = (fovea) => "x-api-key" in fovea.headers;

/**
 * Ask the user for a key after the server has rejected a request. A user who declines is not asked again.
 * @returns {boolean} whether the user has entered a key to try
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
