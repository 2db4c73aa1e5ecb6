// Runs the streams tab: the list of streams, and the video, counts, events and controls of the selected one.

import { write } from "./announce.js";
import { choicesOf } from "./choices.js";
import { make } from "./dom.js";
import { EventList } from "./events.js";
import { askForKey } from "./key.js";
import { Player } from "./player.js";
import { ShapeEditor } from "./shapes.js";
import { showCounts, showStreams } from "./streamlist.js";

const EVERY_MS = 1500;
const at = (id) => document.getElementById(id);

const urlOf = (name) => new URL(name, import.meta.url).href;

function loadStyles(href) {
  return new Promise((onload) => document.head.append(make("link", { rel: "stylesheet", href, onload })));
}

/** Fill the tab and keep it up to date. It pauses while `isShown` returns false. */
export async function runStreams(fovea, isShown) {
  const [page] = await Promise.all([fetch(urlOf("streams.html")), loadStyles(urlOf("streams.css"))]);
  at("streams").innerHTML = await page.text();
  const view = at("watched");
  const player = new Player(fovea, view);
  const events = new EventList(fovea, at("events"));
  const editor = new ShapeEditor(view, onDraw, addShape);
  let streams = [];
  // Id of the selected stream.
  let chosen = null;
  // Whether the user may change streams. Null until the server has returned the key's scopes.
  let mayChange = null;
  // Whether the user may see images and events.
  let maySee = true;

  const current = () => streams.find(({ id }) => id === chosen);

  // Display

  async function follow() {
    for (;;) {
      if (isShown() && !document.hidden) await refresh();
      await new Promise((done) => setTimeout(done, EVERY_MS));
    }
  }

  async function refresh() {
    try {
      streams = await fovea.streams();
      if (mayChange === null) {
        const scopes = (await fovea.key())?.scopes;
        mayChange = !scopes || scopes.includes("control");
        maySee = mayChange || scopes.includes("cameras");
        if (!maySee) player.show(null);
      }
      render();
    } catch (error) {
      if (!askForKey(fovea, error)) warn(error);
      else mayChange = null;
    }
  }

  function render() {
    if (!current()) choose(streams[0]?.id ?? null);
    showStreams(at("stream-list"), streams, chosen, choose);
    at("no-streams").hidden = streams.length > 0;
    at("stream-panel").hidden = at("stream-side").hidden = !streams.length;
    at("add").hidden = !mayChange;
    const stream = current();
    if (stream) show(stream);
  }

  function show(stream) {
    const { id, state, reason, enabled, of_file: ofFile } = stream;
    const own = mayChange && !ofFile;
    write(at("stream-name"), id);
    write(at("stream-facts"), ofFile ? "from streams.toml" : "");
    const unseen = maySee ? reason : "this key may not see images and events, because it lacks the scope cameras";
    view.setAttribute("data-state", unseen ? `${state}: ${unseen}` : state);
    at("watched-picture").ariaLabel = `The newest picture of ${id}`;
    at("pause").hidden = at("delete").hidden = !own;
    at("pause").textContent = enabled === false ? "Start" : "Stop";
    at("shape-apply").hidden = !own;
    at("shape-where").textContent = own ? "" : ofFile
      ? `This stream is defined in streams.toml: copy the setting below [${id}] in that file.`
      : "This key may not change streams: copy the setting.";
    const shaped = [stream.lines, stream.zones].some((each) => each?.length);
    at("no-counts").hidden = shaped;
    showCounts(at("counts"), stream, own ? removeShape : null);
    const counts = stream.counts !== undefined;
    at("event-panel").hidden = !counts;
    events.follow(counts && maySee && isShown() ? id : null);
  }

  function choose(id) {
    editor.close();
    chosen = id;
    player.show(maySee ? id : null);
    if (id === null) events.follow(null);
    else render();
  }

  function warn(error) {
    at("streams-alert").hidden = !error;
    write(at("streams-alert"), error ? [error.message, error.hint].filter(Boolean).join(": ") : "");
  }

  // Changes

  /** Run a change, then show the new state or the error. Return whether the change succeeded. */
  async function change(work) {
    warn(null);
    try {
      await work();
      await refresh();
      return true;
    } catch (error) {
      warn(error);
      return false;
    }
  }

  const patch = (settings) => change(() => fovea.changeStream(chosen, settings));

  function onDraw(drawing) {
    player.freeze(drawing);
    for (const id of ["draw-line", "draw-zone"]) at(id).disabled = drawing;
  }

  async function addShape(kind, text) {
    if (await patch({ [kind]: [...textsOf(kind), text] })) editor.close();
  }

  function removeShape(kind, text) {
    const rest = textsOf(kind).filter((each) => each !== text);
    patch({ [kind]: rest.length ? rest : null });
  }

  const textsOf = (kind) => [current()[kind] ?? []].flat();

  const open = (kind) => editor.open(kind, [...textsOf("lines"), ...textsOf("zones")].map((each) => each.split("=")[0]));

  async function offerModels() {
    const models = choicesOf(await fovea.models().catch(() => []));
    const names = new Set(models.filter(({ reason }) => !reason).map(({ name }) => name));
    at("new-model").replaceChildren(...[...names].map((name) => make("option", { textContent: name })));
  }

  at("add").addEventListener("click", () => {
    at("new-stream").hidden = !at("new-stream").hidden;
    if (!at("new-stream").hidden) offerModels().then(() => at("new-id").focus());
  });
  at("new-stream").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [id, source, model] = ["new-id", "new-source", "new-model"].map((each) => at(each).value.trim());
    if (await change(() => fovea.addStream({ id, source, model, every: "200ms", track: "bytetrack" }))) {
      at("new-stream").hidden = true;
      at("new-stream").reset();
      choose(id);
    }
  });
  at("pause").addEventListener("click", () => patch({ enabled: current().enabled === false ? null : false }));
  at("delete").addEventListener("click", () => {
    if (confirm(`Delete the stream ${chosen} and its events?`)) change(() => fovea.removeStream(chosen));
  });
  at("draw-line").addEventListener("click", () => open("lines"));
  at("draw-zone").addEventListener("click", () => open("zones"));
  addEventListener("keydown", ({ key }) => key === "Escape" && editor.close());
  addEventListener("hashchange", () => {
    player.show(isShown() && maySee ? chosen : null);
    if (isShown()) refresh();
    else events.follow(null);
  });
  follow();
}
