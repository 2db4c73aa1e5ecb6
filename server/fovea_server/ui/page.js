// Runs the page: keeps the user's choices, sends requests, and shows the results.

import { alarm, alarmEach, announce, write } from "./announce.js";
import { choicesOf, firstChoice, keepChoice, rivalOf, someAbsent, unlistedChoice } from "./choices.js";
import { showCode } from "./codebox.js";
import { colourByName } from "./colours.js";
import { fetchExample } from "./examples.js";
import { filterByClass, filterItems, rowsOf } from "./found.js";
import { Fovea } from "./fovea.js";
import { pick, watch } from "./images.js";
import { addKey, askForKey, hasKey } from "./key.js";
import { layersOff, showLayers, wireLayers } from "./layers.js";
import { follow } from "./live.js";
import { showOptions, wireOptions } from "./options.js";
import { Pane } from "./pane.js";
import { ask, describeMissing, optionsFor } from "./request.js";
import { answerOf, FORMS } from "./results.js";
import { download, picture } from "./save.js";
import { showChips, showFound, showSaves } from "./sidebar.js";
import { showThumbnails, step } from "./strip.js";
import { tab, wireTabs } from "./tabs.js";
import { TASKS } from "./tasks.js";
import { wireTheme } from "./theme.js";
import { summary } from "./sentences.js";
import { Zoom } from "./zoom.js";

const fovea = addKey(new Fovea(new URL("..", import.meta.url)));
const at = (id) => document.getElementById(id);

const state = {
  images: [],
  // Image that is shown.
  current: null,
  conf: 0.25,
  iou: 0.7,
  // Option `tile` of the request; "" for no tiles.
  tile: "",
  overlap: 0.2,
  // Whether to shrink large images before the upload.
  shrink: true,
  // Ids of the chosen classes by name. If it is empty, all classes are shown.
  classes: new Map(),
  // Row that stays highlighted.
  pinned: null,
  camera: false,
};
let choices = [];
let panes = [];
const zoom = new Zoom(at("panes"));

// Requests

/** Send an image to each shown model, unless the model's last response fits the options. */
function askAll(image) {
  for (const { choice } of panes) {
    const entry = image.answers.get(choice.key);
    if (!entry?.answer || describeMissing(entry, state, choice)) askOne(image, choice);
  }
}

/** Send an image to a model. Resolves after the response, an error or a cancellation. */
function askOne(image, choice) {
  const former = image.requests.get(choice.key);
  if (former && !describeMissing(former, state, choice)) return former.over;
  former?.abort.abort();
  const request = { asked: optionsFor(state, choice), abort: new AbortController() };
  image.requests.set(choice.key, request);
  request.over = awaitAnswer(image, choice, request);
  if (image === state.current) render();
  return request.over;
}

async function awaitAnswer(image, choice, request) {
  const entry = await ask(fovea, image, choice, request.asked, request.abort.signal, (share, bytes) => {
    Object.assign(request, { share, bytes });
    if (image !== state.current || image.requests.get(choice.key) !== request) return;
    for (const pane of panes) if (pane.choice.key === choice.key) pane.follow(request);
  });
  // Drop the response if a later request has replaced this one.
  if (image.requests.get(choice.key) !== request) return;
  image.requests.delete(choice.key);
  image.answers.set(choice.key, entry);
  if (image === state.current) render();
  showStrip();
}

/** Cancel the requests in flight for an image. */
function cancel(image) {
  for (const { abort } of image.requests.values()) abort.abort(new Error("Cancelled."));
}

// Images

async function addFiles(files, { onDisk }) {
  if (tab() !== "images") location.hash = "images";
  alarm(null);
  const failed = [];
  for (const file of files) {
    try {
      const image = await pick(file, measure, { onDisk });
      state.images.push(image);
      select(image);
    } catch (error) {
      failed.push([error, file.name]);
      alarmEach(failed);
    }
  }
}

async function addExample(file) {
  await fetchExample(file).then((image) => addFiles([image], { onDisk: false }), alarm);
}

/** Let the server measure an image that browsers cannot show, such as TIFF. */
async function measure(blob) {
  if (!panes.length) throw new Error(NO_MODEL);
  const { name, version } = panes[0].choice;
  return (await fovea.predict(name, blob, { version })).images[0];
}

/** Show an image. Undefined clears the page. */
function select(image) {
  if (!state.camera) zoom.reset();
  state.current = image ?? null;
  state.pinned = null;
  for (const pane of panes) pane.show(state.current);
  render();
  showStrip();
  if (image) askAll(image);
}

/** Remove images from the page, and show the image that takes the place of the current one. */
function remove(images) {
  const place = state.images.indexOf(state.current);
  for (const image of images) {
    cancel(image);
    URL.revokeObjectURL(image.url);
  }
  state.images = state.images.filter((each) => !images.includes(each));
  select(state.images[Math.min(place, state.images.length - 1)]);
  if (!state.current) at("files").focus();
}

async function runCamera() {
  let former = null;
  const [{ film }, { Lines }] = await Promise.all([import("./camera.js"), import("./lines.js")]);
  const lines = new Lines(fovea);
  alarm(null);
  setCamera(true);
  try {
    for await (const image of film(() => state.camera, (image) => askFrame(lines, image), alarm)) {
      state.images = [...state.images.filter((each) => each !== former), image];
      select(image);
      if (former) URL.revokeObjectURL(former.url);
      former = image;
    }
  } catch (error) {
    alarm(error);
  }
  lines.close();
  setCamera(false);
  at("camera").disabled = false;
}

/** Send a frame to each shown model. Resolves to the first error, if there is one. */
async function askFrame(lines, image) {
  const entries = await Promise.all(panes.map(async ({ choice }) => {
    const entry = await ask(lines, image, choice, optionsFor(state, choice));
    image.answers.set(choice.key, entry);
    return entry;
  }));
  return entries.find(({ error }) => error)?.error;
}

/** Stop the camera after the frame in flight. */
function stopCamera() {
  state.camera = false;
  at("camera").disabled = true;
}

function setCamera(on) {
  state.camera = on;
  showStrip();
  at("camera").setAttribute("aria-pressed", on);
}

// Display

function render() {
  const image = state.current;
  if (!panes.length) return;
  showOptions(panes.map(({ choice }) => choice.task), state.classes);
  if (!image) {
    showNothing();
    return;
  }
  const entries = panes.map(({ choice }) => image.answers.get(choice.key));
  const lists = entries.map((entry) => (entry?.answer ? filterItems(entry.answer, entry.asked, state) : []));
  const kept = lists.map((items) => filterByClass(items, state.classes));
  const rows = rowsOf(entries.map((entry) => entry?.answer), kept);
  if (!rows.some(({ left, right }) => left === state.pinned?.left && right === state.pinned?.right)) {
    state.pinned = null;
  }
  const alone = new Set(rows.filter(({ mark }) => mark.endsWith("only")).map(({ left, right }) => left ?? right));
  colourByName(panes.length === 2 ? panes[0].model?.labels ?? [] : []);
  panes.forEach((pane, index) => {
    pane.report(entries[index], kept[index], alone, image.requests.get(pane.choice.key) ?? null);
  });
  showChips(at("classes"), lists, state.classes, toggleClass);
  showFound(at("found"), rows, state.pinned, light, pin);
  if (entries[0]?.timing?.stages && !state.camera) showCropsOf(rows, entries[0].answer);
  const said = summary(entries, kept, rows, panes.map(({ model }) => model));
  const note = panes.map(({ choice }, index) => noteOn(image, choice, entries[index])).find(Boolean) ?? "";
  at("summary").textContent = said;
  at("note").textContent = note;
  // A screen reader cannot keep up with a sentence for each frame.
  if (!state.camera && entries.every(Boolean)) announce(`${said} ${note}`.trim());
  light(null);
  showLayers(at("layers"), entries.map((entry) => entry?.answer));
  const [{ choice, choice: { task } }] = panes;
  // The next frame comes before a search would end.
  const searched = task === "embed" && entries[0]?.answer && !state.camera;
  search(searched ? image : null, choice);
  // Status 400 means that a file is not an image or is damaged, so a new request would fail as well. Saving
  // sends the other images again.
  const good = state.images.filter((each) => each.answers.get(choice.key)?.error?.status !== 400);
  showSaves(at("saves"), entries.some((entry) => entry?.answer), task, good.length, save);
  showRequest(image, entries[0]?.answer && answerOf(entries[0].answer, kept[0]));
}

async function showCropsOf(rows, answer) {
  const [list] = at("found").children;
  const [{ image }] = panes;
  const [{ showCrops }] = await Promise.all([import("./crops.js"), image.decode()]);
  // The list may have changed while the image was decoded.
  if (list && list === at("found").firstChild) showCrops(at("found"), rows, image, answer);
}

function showNothing() {
  for (const pane of panes) pane.warn(null);
  at("summary").textContent = "Nothing yet.";
  at("note").textContent = "";
  for (const id of ["found", "classes"]) at(id).replaceChildren();
  search(null);
  for (const id of ["layers", "saves", "save"]) at(id).hidden = true;
  showCode(null);
}

function search(image, choice) {
  if (!image && at("similar").hidden) return;
  import("./similar.js").then(({ showSimilar }) => showSimilar(at("similar"), fovea, image, choice));
}

/** Return a note if a response does not fit the options that the user has set, else "". */
function noteOn(image, choice, entry) {
  const what = entry && describeMissing(entry, state, choice);
  if (!what) return "";
  return image.requests.has(choice.key) ? `Requesting results for ${what}…` : `Send a new request for ${what}.`;
}

function showRequest(image, answer) {
  const [{ choice: { name, version, task }, model }] = panes;
  const labels = model?.labels ?? [];
  const wheel = document.querySelector("meta[name=fovea-client]").content;
  const asked = { url: fovea.url, model: name, version, task, labels, hasKey: hasKey(fovea), file: image.name, wheel };
  showCode({ ...state, ...asked, answer });
  const save = at("save");
  save.hidden = image.onDisk;
  Object.assign(save, { href: image.url, download: image.name, textContent: `Save ${image.name}` });
}

function showStrip() {
  const error = (image) => panes.map(({ choice }) => image.answers.get(choice.key)?.error).find(Boolean);
  showThumbnails(at("strip"), state.images, state.current, error, select, (image) => remove([image]));
  at("remove").hidden = !state.current || state.camera;
  at("clear").hidden = state.images.length < 2 || state.camera;
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

function toggleClass(class_name, class_id) {
  if (!state.classes.delete(class_name)) state.classes.set(class_name, class_id);
  render();
}

// Files

/** Save the current image as a picture or as JSON, or the results of all images in one of `FORMS`. */
async function save(form) {
  const { name } = state.current;
  const stem = name.replace(/\.[^.]*$/, "");
  const [{ choice, model }] = panes;
  if (form === "Picture") {
    download(await picture(panes, layersOff(at("panes"))), `${stem}-annotated.jpg`);
  } else if (form === "JSON") {
    const found = resultOf(state.current, choice);
    download(new Blob([JSON.stringify(answerOf(found.answer, found.items))]), `${stem}.json`);
  } else {
    await Promise.all(state.images.map((image) => {
      const entry = image.answers.get(choice.key);
      return entry?.answer && !describeMissing(entry, state, choice) ? null : askOne(image, choice);
    }));
    const results = state.images.map((image) => resultOf(image, choice)).filter(Boolean);
    download(FORMS[form].write(results, model), FORMS[form].name);
    const lost = state.images.filter((image) => !image.answers.get(choice.key)?.answer);
    alarm(lost.length ? new Error(`${FORMS[form].name} leaves out images without a result: ${lost.map((each) => each.name).join(", ")}`) : null);
  }
}

function resultOf(image, { key }) {
  const { answer, asked } = image.answers.get(key) ?? {};
  return answer && { name: image.name, answer, items: filterByClass(filterItems(answer, asked, state), state.classes) };
}

// Models

function addPane(choice) {
  const pane = new Pane(panes.length ? "Model on the right" : "Model", pickModel, addExample);
  pane.offer(choices, choice);
  panes.push(pane);
  at("panes").append(pane.element);
  if (state.current) pane.show(state.current);
  changeModel(pane);
}

async function pickModel(pane, former) {
  if (pane.choice.load) {
    const wanted = pane.choice;
    pane.choice = former;
    const loaded = await load(wanted);
    pane.offer(choices, loaded ?? former);
    if (!loaded) return;
  }
  if (pane === panes[0]) keepChoice(pane.choice);
  changeModel(pane);
}

/** Load a version beside the others. If that fails, show the error and return null. */
async function load({ id, name, version }) {
  try {
    await fovea.loadVersion(name, version);
    await listModels();
  } catch (error) {
    alarm(error);
    return null;
  }
  return choices.find((each) => each.id === id) ?? null;
}

async function changeModel(pane) {
  pane.model = null;
  if (pane === panes[0]) restartLive();
  render();
  if (state.current) askAll(state.current);
  const { choice } = pane;
  const model = await fovea.model(choice.name, choice.version).catch(() => null);
  if (model && pane.choice.key === choice.key) {
    pane.describe(model);
    render();
  }
}

async function onCard({ target }) {
  const pane = panes.find(({ card }) => card === target && card.open);
  if (!pane?.model) return;
  const { showMore } = await import("./opened.js");
  showMore(fovea, pane, await mayControl() && unload);
}

/** Unload the version of a pane. The first pane then shows the current version; the second pane closes. */
async function unload(pane) {
  const { name, version } = pane.choice;
  try {
    await fovea.unloadVersion(name, version);
    await listModels();
  } catch (error) {
    alarm(error);
    return;
  }
  if (pane === panes[1]) toggleCompare();
  else {
    pane.offer(choices, choices.find((each) => each.id === name));
    pickModel(pane);
  }
}

async function toggleCompare() {
  const comparing = panes.length === 2;
  at("compare").setAttribute("aria-pressed", !comparing);
  if (comparing) {
    const { element } = panes.pop();
    if (element.contains(document.activeElement)) at("compare").focus();
    element.remove();
    render();
    return;
  }
  at("compare").disabled = true;
  const rival = rivalOf(panes[0].choice, choices);
  const chosen = rival.load ? await load(rival) : rival;
  at("compare").disabled = false;
  if (chosen && panes.length === 1) addPane(chosen);
  else at("compare").setAttribute("aria-pressed", false);
}

const restartLive = follow(
  () => fovea.statistics(panes[0].choice.name),
  (words) => Object.entries(words).forEach(([id, text]) => { at(id).textContent = text; }),
);

const NO_MODEL = "No model for images is ready: see /v1/models for the reasons, or build a model with `fovea build`.";
const ALONE = "There is no second model or version to compare with.";
const UNLOADED = "Other versions are not loaded: loading them requires a key with the scope control.";
const LISTED_MS = 3000;

/** Show the first model as soon as one is ready, and keep the list of models up to date. */
async function followModels() {
  for (;;) {
    if (!document.hidden && await listModels().then(onListed, onListError)) return;
    await new Promise((done) => setTimeout(done, LISTED_MS));
  }
}

const AWAY = "The server does not respond. This page continues when the server is back.";

/** Send the current image again if the server was unreachable. */
function onListed() {
  const away = at("away").textContent;
  at("away").textContent = "";
  if (away && state.current) askAll(state.current);
  return false;
}

/** Show why the models cannot be listed. Return true if the server never lists them to this visitor. */
function onListError(error) {
  // A proxy returns status 502 to 504 while the server does not respond.
  const away = error.status === 0 || error.status > 501;
  if (away) write(at("away"), AWAY);
  else if (error.code === "restricted" && !panes.length) {
    welcome();
    return true;
  } else if (!panes.length && !askForKey(fovea, error)) alarm(error);
  return false;
}

async function listModels() {
  const models = await fovea.models();
  const absent = someAbsent(models);
  choices = choicesOf(models, absent && await mayControl());
  const ready = choices.filter(({ reason }) => !reason);
  if (!panes.length) {
    alarm(ready.length ? null : new Error(NO_MODEL));
    if (ready.length) {
      begin(firstChoice(choices));
    }
  } else {
    for (const pane of panes) if (pane.offer(choices)) changeModel(pane);
  }
  const alone = ready.length < 2 && panes.length < 2;
  const rival = panes.length === 1 && !alone ? rivalOf(panes[0].choice, choices) : null;
  const title = alone ? (absent ? UNLOADED : ALONE) : rival?.load ? `Load version ${rival.version} next to this one` : "";
  Object.assign(at("compare"), { disabled: alone, title });
}

function begin(choice) {
  addPane(choice);
  at("camera").disabled = !navigator.mediaDevices;
}

let control = null;

/** Resolves to whether the user may load models. A server that requires no key allows everything. */
function mayControl() {
  control ??= fovea.headers["x-api-key"]
    ? fovea.key().then(({ scopes }) => scopes.includes("control"), () => false)
    : Promise.resolve(true);
  return control;
}

// Visitors, who must name a model because the server does not list its models to them

function welcome() {
  const form = at("visitor");
  form.hidden = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = at("visitor-model").value.trim();
    alarm(null);
    try {
      const { task } = await fovea.predict(name, await fetchExample("scene-1.jpg"));
      if (!TASKS[task]) throw new Error(`The outputs of ${name} are not decoded`);
      choices = [unlistedChoice(name, task), ...choices.filter((each) => each.name !== name)];
      Object.assign(at("compare"), { disabled: choices.length < 2 && panes.length < 2, title: "" });
      if (!panes.length) begin(choices[0]);
      else {
        panes.forEach((pane) => pane.offer(choices));
        panes[0].offer(choices, choices[0]);
        changeModel(panes[0]);
      }
    } catch (error) {
      alarm(error);
    }
  });
}

// Controls

/** Close the innermost open part of the page. */
function closeOne({ key, target }) {
  if (key !== "Escape" || target.matches("select, #tile")) return;
  const card = target.closest("details[open]");
  if (card) {
    card.open = false;
    card.querySelector("summary").focus();
  } else if (state.pinned) pin(state.pinned);
  else if (!at("alert").hidden) alarm(null);
  else if (state.camera) stopCamera();
  else if (panes.length === 2) toggleCompare();
}

/** Handle keys of the whole page, unless the focused element uses the key itself. */
function onKey(event) {
  if (tab() !== "images") return;
  const { key, target } = event;
  closeOne(event);
  if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || !state.current) return;
  if (target.matches("input:not([type=checkbox]), select, pre")) return;
  const next = event.shiftKey ? null : step(key, state.images, state.current);
  if (next) select(next);
  else if (event.shiftKey ? !zoom.pan(key) && !zoom.key(key) : !zoom.key(key)) return;
  event.preventDefault();
}

/** Handle the buttons over the images. */
function onPanes({ target }) {
  if (target.matches(".cancel")) cancel(state.current);
  if (target.matches(".again")) askAll(state.current);
}

wireOptions(state, render, () => state.current && askAll(state.current));
wireTheme(at("theme"));
let streams = null;
wireTabs((name) => {
  if (name === "streams") {
    streams ??= import("./streams.js").then(({ runStreams }) => runStreams(fovea, () => tab() === "streams"));
  }
});
at("files").addEventListener("change", ({ target }) => {
  addFiles([...target.files], { onDisk: true });
  target.value = "";
});
watch(addFiles);
at("camera").title = navigator.mediaDevices ? "" : "Browsers give the camera only to pages over https, or on localhost.";
at("camera").addEventListener("click", () => (state.camera ? stopCamera() : runCamera()));
at("compare").addEventListener("click", toggleCompare);
at("remove").addEventListener("click", () => remove([state.current]));
at("clear").addEventListener("click", () => remove(state.images));
at("panes").addEventListener("click", onPanes);
wireLayers(at("layers"), at("panes"));
addEventListener("keydown", onKey);
addEventListener("toggle", onCard, true);
followModels();
