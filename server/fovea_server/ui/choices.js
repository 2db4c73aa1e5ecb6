// Lists the models and versions that a user can pick.

import { TASKS } from "./tasks.js";

export const ABSENT = "Not available";

/**
 * @typedef {{id: string, key: string, name: string, version: string | undefined, task: string | null,
 *            group: string, names: number, reason: string | null, load: boolean}} Choice
 * An entry of the model picker. `id` stays the same when the models are listed again. `key` names the
 * version that answers, so it changes when the server switches versions. `names` is the number of classes
 * that have a name. `reason` explains why a model cannot be picked. `load` is true if the version must be
 * loaded before its first request.
 */

/**
 * List each model, then its other versions that are ready, then the versions that the user may load.
 * @param {object[]} models result of `Fovea.models`
 * @param {boolean} mayLoad whether the user may load versions
 * @returns {Choice[]} sorted by task; models that cannot be picked come last
 */
export function choicesOf(models, mayLoad = false) {
  const all = models.flatMap((model) => {
    const others = model.versions.filter((each) => each.version !== model.version).reverse();
    const absent = mayLoad && model.ready ? others.filter(isAbsent) : [];
    return [
      choice(model),
      ...others.filter((each) => each.ready).map(({ version }) => choice(model, version)),
      ...absent.map(({ version }) => ({ ...choice(model, version), load: true })),
    ];
  });
  const groups = [...Object.values(TASKS).map(({ label }) => label), ABSENT];
  return all.sort((a, b) => groups.indexOf(a.group) - groups.indexOf(b.group));
}

/** Return whether a model has a version that is not loaded. */
export const someAbsent = (models) => models.some(({ versions }) => versions.some(isAbsent));

const isAbsent = ({ state }) => state === "UNAVAILABLE";

/** Return another version of the model to compare with, else a model of the same task, else any model. */
export function rivalOf(choice, choices) {
  const others = choices.filter(({ id, reason }) => !reason && id !== choice.id);
  const same = (key) => others.find((each) => each[key] === choice[key]);
  return same("name") ?? same("task") ?? others[0];
}

const KEPT = "fovea-model";

/** Store the picked model for the next visit. */
export function keepChoice({ id }) {
  try {
    localStorage.setItem(KEPT, id);
  } catch {
    // The browser blocks storage, so the next visit begins with the first model.
  }
}

/** Return the choice of the last visit if it can be picked, else the first that can. */
export function firstChoice(choices) {
  let kept = null;
  try {
    kept = localStorage.getItem(KEPT);
  } catch {
    // The browser blocks storage.
  }
  const ready = choices.filter(({ reason, load }) => !reason && !load);
  return ready.find(({ id }) => id === kept) ?? ready[0];
}

function choice(model, version) {
  const { name, task } = model;
  const id = version === undefined ? name : `${name}, version ${version}`;
  const key = `${name}, version ${version ?? model.version}`;
  const reason = findReason(model);
  const group = reason ? ABSENT : TASKS[task]?.label ?? task;
  return { id, key, name, version, task, group, names: model.label_count, reason, load: false };
}

/** Make a choice for an unlisted model. `task` comes from its response. */
export function unlistedChoice(name, task) {
  return { id: name, key: name, name, version: undefined, task, group: TASKS[task].label, names: 0, reason: null, load: false };
}

function findReason({ ready, accepts_images: takesImages }) {
  if (!ready) return "not ready";
  return takesImages ? null : "accepts tensors, not images";
}
