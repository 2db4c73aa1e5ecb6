// The models and versions that a user can pick.

import { TASKS } from "./tasks.js";

export const ABSENT = "Not available";

/**
 * @typedef {{id: string, key: string, name: string, version: string | undefined, task: string | null,
 *            group: string, names: number, reason: string | null, load: boolean}} Choice
 * `load` says that it is to be loaded before it can answer; `id` stays the same when the models are listed again; `key` is of the version that answers; `names` is
 * how many classes have one.
 */

/**
 * Each model, its other versions that are ready, and then those that the user may load.
 * @param {object[]} models as `Fovea.models` lists them
 * @param {boolean} mayLoad whether the user may load versions
 * @returns {Choice[]} by task, with the reason where one cannot be picked; those come last
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

/** Whether versions of the models could be loaded. */
export const someAbsent = (models) => models.some(({ versions }) => versions.some(isAbsent));

const isAbsent = ({ state }) => state === "UNAVAILABLE";

/** The one to compare another with: an other version of the model, or a model of the same task. */
export function rivalOf(choice, choices) {
  const others = choices.filter(({ id, reason }) => !reason && id !== choice.id);
  const same = (key) => others.find((each) => each[key] === choice[key]);
  return same("name") ?? same("task") ?? others[0];
}

const KEPT = "fovea-model";

/** Keep what the user has picked, for the next visit. */
export function keepChoice({ id }) {
  try {
    localStorage.setItem(KEPT, id);
  } catch {
    // A browser that keeps nothing begins with the first model.
  }
}

/** The choice of the last visit, if it can be picked, else the first. */
export function firstChoice(choices) {
  let kept = null;
  try {
    kept = localStorage.getItem(KEPT);
  } catch {
    // As above.
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

/** A model that was not listed, by the task that it answered with. */
export function unlistedChoice(name, task) {
  return { id: name, key: name, name, version: undefined, task, group: TASKS[task].label, names: 0, reason: null, load: false };
}

function findReason({ ready, accepts_images: takesImages }) {
  if (!ready) return "not ready";
  return takesImages ? null : "accepts tensors, not images";
}
