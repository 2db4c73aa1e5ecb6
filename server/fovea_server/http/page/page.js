// The page: what the user chose, the requests that follow from it, and what is shown.

import { frames, openCamera, withoutCamera } from "./camera.js";
import { choicesOf } from "./choices.js";
import { showCode } from "./codebox.js";
import { filtered, ofClasses, paired } from "./found.js";
import { Fovea } from "./fovea.js";
import { pick, watch } from "./images.js";
import { follow } from "./live.js";
import { Pane } from "./pane.js";
import { ask, missing, optionsFor } from "./request.js";
import { showChips, showFound } from "./sidebar.js";
import { showThumbnails } from "./strip.js";
import { wireTheme } from "./theme.js";
import { summary } from "./words.js";

const fovea = new Fovea(new URL("..", import.meta.url));
const at = (id) => document.getElementById(id);

const state = {
  images: [],
  current: null, // the image that is shown
  conf: 0.25,
  iou: 0.7,
  classes: new Map(), // name -> id of the chosen ones; all are shown while there is none
  pinned: null, // the row that stays lit
  camera: false,
};
let choices = [];
let panes = [];

// Requests

/** Ask every shown model about an image, unless what it answered tells all. */
function askAll(image) {
  for (const { choice } of panes) {
    const entry = image.answers.get(choice.key);
    if (!entry?.answer || missing(entry, state)) askOne(image, choice);
  }
}

async function askOne(image, choice) {
  const former = image.requests.get(choice.key);
  if (former && !missing(former, state)) return;
  former?.abort.abort();
  const request = { asked: optionsFor(state), abort: new AbortController() };
  image.requests.set(choice.key, request);
  const entry = await ask(fovea, image, choice, request.asked, request.abort.signal);
  // A later request counts, whichever is answered first.
  if (image.requests.get(choice.key) !== request) return;
  image.requests.delete(choice.key);
  image.answers.set(choice.key, entry);
  if (image === state.current) render();
}

const needed = (image) =>
  panes.map(({ choice }) => image.answers.get(choice.key))
    .map((entry) => (entry ? missing(entry, state) : "")).find(Boolean) ?? "";

// Images

async function addFiles(files, { onDisk }) {
  alarm(null);
  for (const file of files) {
    try {
      const image = await pick(file, measure, { onDisk });
      state.images.push(image);
      select(image);
    } catch (error) {
      alarm(error, file.name);
    }
  }
}

/** Have the server measure a file that browsers do not show, such as TIFF. */
async function measure(blob) {
  if (!panes.length) throw new Error(NO_MODEL);
  const { name, version } = panes[0].choice;
  return (await fovea.predict(name, blob, { version })).images[0];
}

function select(image) {
  state.current = image;
  state.pinned = null;
  for (const pane of panes) pane.show(image);
  render();
  showStrip();
  askAll(image);
}

async function runCamera() {
  let former = null;
  alarm(null);
  setCamera(true);
  try {
    for await (const blob of frames(await openCamera())) {
      if (!state.camera) break;
      const image = await pick(blob, null, { name: "camera.jpg", onDisk: false });
      const entries = await Promise.all(panes.map(async ({ choice }) => {
        const entry = await ask(fovea, image, choice, optionsFor(state));
        image.answers.set(choice.key, entry);
        return entry;
      }));
      const error = entries.find((entry) => entry.error)?.error;
      if (error) {
        URL.revokeObjectURL(image.url);
        if (![429, 503].includes(error.status)) throw error;
        alarm(error);
        const until = performance.now() + 1000 * (error.retryAfterS ?? 1);
        while (state.camera && performance.now() < until) await pause(100);
        alarm(null);
        continue;
      }
      state.images = [...state.images.filter((each) => each !== former), image];
      select(image);
      if (former) URL.revokeObjectURL(former.url);
      former = image;
    }
  } catch (error) {
    alarm(error);
  }
  setCamera(false);
  at("camera").disabled = false;
}

/** Have the camera stop after the frame that is under way. */
function stopCamera() {
  state.camera = false;
  at("camera").disabled = true;
}

function setCamera(on) {
  state.camera = on;
  at("camera").setAttribute("aria-pressed", on);
  // A sentence for each frame would drown a screen reader.
  at("summary").setAttribute("aria-live", on ? "off" : "polite");
}

// What is shown

const UNSCORED = ["classify", "semantic", "saliency", "depth"]; // tasks without use for the sliders

function render() {
  const image = state.current;
  if (!panes.length) return;
  const idle = panes.every(({ model }) => UNSCORED.includes(model?.task));
  at("conf").disabled = at("iou").disabled = idle;
  at("filter").hidden = idle && !state.classes.size;
  if (!image) return;
  const entries = panes.map(({ choice }) => image.answers.get(choice.key));
  const lists = entries.map((entry) => (entry?.answer ? filtered(entry.answer, entry.asked, state) : []));
  const kept = lists.map((items) => ofClasses(items, state.classes));
  const rows = rowsOf(kept, entries);
  if (!rows.some(({ left, right }) => left === state.pinned?.left && right === state.pinned?.right)) {
    state.pinned = null;
  }
  const alone = new Set(rows.filter((row) => row.compared && !(row.left && row.right))
    .map(({ left, right }) => left ?? right));
  panes.forEach((pane, index) => pane.report(entries[index], kept[index], alone));
  showChips(at("classes"), lists, state.classes, toggleClass);
  showFound(at("found"), rows, state.pinned, light, pin);
  at("summary").textContent = summary(entries, kept, rows);
  at("note").textContent = needed(image);
  light(null);
  showRequest(image);
}

function rowsOf(kept, entries) {
  const compared = panes.length === 2 && entries.every((entry) => entry?.answer);
  if (compared) return paired(...kept).map((row) => ({ ...row, compared }));
  return kept[0].map((left) => ({ left, right: null }));
}

function showRequest(image) {
  const { name, version } = panes[0].choice;
  const task = panes[0].model?.task;
  showCode({ ...state, url: fovea.url, model: name, version, task, file: image.name });
  const save = at("save");
  save.hidden = image.onDisk;
  Object.assign(save, { href: image.url, download: image.name, textContent: `Save ${image.name}` });
}

function showStrip() {
  showThumbnails(at("strip"), state.images, state.current, select);
}

function light(row) {
  const { left = null, right = null } = row ?? state.pinned ?? {};
  panes.forEach((pane, index) => pane.light([left, right][index] ?? null));
}

function pin(row) {
  const { left, right } = state.pinned ?? {};
  state.pinned = row.left === left && row.right === right ? null : row;
  render();
}

function toggleClass({ class_name, class_id }) {
  if (!state.classes.delete(class_name)) state.classes.set(class_name, class_id);
  render();
}

/** Say what went wrong outside of any model; null for nothing. */
function alarm(error, name = "") {
  at("alert").hidden = !error;
  const words = error ? [name && `${name}:`, error.message, error.hint] : [];
  at("alert").textContent = words.filter(Boolean).join(" ");
}

// Models

function addPane(choice) {
  const title = panes.length ? "Model on the right" : "Model";
  const pane = new Pane(choices, choice, title, changeModel);
  panes.push(pane);
  at("panes").append(pane.element);
  if (state.current) pane.show(state.current);
  changeModel(pane);
}

async function changeModel(pane) {
  pane.model = null;
  if (pane === panes[0]) restartLive();
  render();
  if (state.current) askAll(state.current);
  const { choice } = pane;
  const model = await fovea.model(choice.name, choice.version).catch(() => null);
  if (model && pane.choice === choice) {
    pane.describe(model);
    render();
  }
}

function toggleCompare() {
  const comparing = panes.length === 2;
  at("compare").setAttribute("aria-pressed", !comparing);
  if (comparing) {
    panes.pop().element.remove();
    render();
    return;
  }
  const others = choices.filter(({ reason }) => !reason);
  addPane(others[(others.indexOf(panes[0].choice) + 1) % others.length]);
}

const restartLive = follow(
  () => fovea.statistics(panes[0].choice.name),
  (words) => Object.entries(words).forEach(([id, text]) => { at(id).textContent = text; }),
);

// Controls

function wireSlider(id) {
  const update = () => {
    state[id] = Number(at(id).value);
    at(`${id}-value`).textContent = state[id].toFixed(2);
    render();
  };
  at(id).addEventListener("input", update);
  at(id).addEventListener("change", () => state.current && askAll(state.current));
  update();
}

const NO_MODEL = "No model that takes images is ready: /v1/models says why; `fovea build` makes one.";
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Show the first model, as soon as one is ready. */
async function start() {
  let ready = [];
  while (!ready.length) {
    try {
      choices = choicesOf(await fovea.models());
      ready = choices.filter(({ reason }) => !reason);
      alarm(ready.length ? null : new Error(NO_MODEL));
    } catch (error) {
      alarm(error);
    }
    if (!ready.length) await pause(3000);
  }
  addPane(ready[0]);
  at("compare").disabled = ready.length < 2;
  at("camera").disabled = withoutCamera() !== null;
}

wireSlider("conf");
wireSlider("iou");
wireTheme(at("theme"));
at("files").addEventListener("change", ({ target }) => {
  addFiles([...target.files], { onDisk: true });
  target.value = "";
});
watch(addFiles);
at("camera").title = withoutCamera() ?? "";
at("camera").addEventListener("click", () => (state.camera ? stopCamera() : runCamera()));
at("compare").addEventListener("click", toggleCompare);
start();
