// Code that sends exactly the request that is on the page.

import { TILED } from "./request.js";
import { KINDS, TASKS } from "./tasks.js";

const KEY = "FOVEA_API_KEY";
const DEFAULTS = { conf: 0.25, iou: 0.7, overlap: 0.2 };

/**
 * @typedef {{url: string, model: string, version: string | undefined, task: string,
 *            file: string, conf: number, iou: number, tile: string, overlap: number,
 *            classes: Map<string, number>, labels: string[], hasKey: boolean, wheel: string}} Asked
 * with the names of the chosen classes, and of all that the model has; code has a place for a key, never the key;
 * `wheel` is the file of the client for Python, which has its version in its name
 */

/** Languages, and the functions that write an `Asked` in them. */
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

/** The options that differ from the server's defaults, of those that the task has. */
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

/** A plain name as it is, else the id; a class without a name is called by its id already. */
function classOption(name, labels) {
  const id = labels.indexOf(name);
  return /^[a-z]([\w -]*\w)?$/i.test(name) || id < 0 ? name : id;
}

const literal = (value) => JSON.stringify(value);

const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
