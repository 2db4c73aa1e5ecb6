// Writes code that sends exactly the page's current request.

import { TILED } from "./request.js";
import { KINDS, TASKS } from "./tasks.js";

const KEY = "FOVEA_API_KEY";
const DEFAULTS = { conf: 0.25, iou: 0.7, overlap: 0.2 };

/**
 * @typedef {{url: string, model: string, version: string | undefined, task: string,
 *            file: string, conf: number, iou: number, tile: string, overlap: number,
 *            classes: Map<string, number>, labels: string[], hasKey: boolean, wheel: string}} Asked
 * A request. `classes` maps the chosen class names to ids, and `labels` has all class names of the model.
 * If `hasKey` is true, the code reads a key from the environment, and never contains the key. `wheel` is
 * the file name of the Python client, which includes its version.
 */

/** Functions that write an `Asked` as code, by language. */
export const WRITERS = { curl, Python: python, JavaScript: javascript };

function curl(asked) {
  const path = `${asked.url}/v1/models/${encodeURIComponent(asked.model)}`;
  const version = asked.version ? `/versions/${asked.version}` : "";
  const query = new URLSearchParams(Object.entries(optionsOf(asked))).toString();
  const address = `${path}${version}/predict${query && `?${query}`}`;
  const key = asked.hasKey ? `-H "X-API-Key: $${KEY}" ` : "";
  return `curl ${key}--data-binary @${shell(asked.file)} ${shell(address)}`;
}

function python(asked) {
  const options = Object.entries(withVersion(asked)).map(([name, value]) => `, ${name}=${literal(value)}`);
  return [
    `# The client: pip install ${asked.url}/page/${asked.wheel}`,
    ...(asked.hasKey ? ["import os", ""] : []),
    "from fovea_client import Client",
    "",
    `with Client(${literal(asked.url)}${asked.hasKey ? `, api_key=os.environ["${KEY}"]` : ""}) as client:`,
    `    found = client.predict(${literal(asked.model)}, ${literal(asked.file)}${options.join("")})`,
    ...KINDS[kind(asked.task)].python,
  ].join("\n");
}

function javascript(asked) {
  const options = Object.entries(withVersion(asked)).map(([name, value]) => `${name}: ${literal(value)}`);
  const last = options.length ? `, { ${options.join(", ")} }` : "";
  return [
    `// The client, beside this file: curl -O ${asked.url}/page/fovea.js`,
    'import { readFile } from "node:fs/promises";',
    'import { Fovea } from "./fovea.js";',
    "",
    `const fovea = new Fovea(${literal(asked.url)}${asked.hasKey ? `, { apiKey: process.env.${KEY} }` : ""});`,
    `const image = await readFile(${literal(asked.file)});`,
    `const { images: [found] } = await fovea.predict(${literal(asked.model)}, image${last});`,
    ...KINDS[kind(asked.task)].javascript,
  ].join("\n");
}

const kind = (task) => TASKS[task]?.kind ?? "detections";

/** Return the options of the task that differ from the server's defaults. */
function optionsOf({ task, classes, labels, ...asked }) {
  const tiled = TILED.includes(task) ? ["iou", ...(asked.tile ? ["tile", "overlap"] : [])] : [];
  const names = kind(task) === "detections" ? ["conf", ...tiled] : [];
  const options = Object.fromEntries(
    names.filter((name) => asked[name] !== DEFAULTS[name]).map((name) => [name, asked[name]]),
  );
  if (classes.size) {
    options.classes = [...classes.keys()].map((name) => classOption(name, labels)).join(",");
  }
  return options;
}

function withVersion(asked) {
  const options = optionsOf(asked);
  return asked.version ? { version: Number(asked.version), ...options } : options;
}

/**
 * Return the name of a class if it needs no quotes, else its id. The name of an unnamed class is its id
 * already.
 */
function classOption(name, labels) {
  const id = labels.indexOf(name);
  return /^[a-z]([\w -]*\w)?$/i.test(name) || id < 0 ? name : id;
}

const literal = (value) => JSON.stringify(value);

const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
