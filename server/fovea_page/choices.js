// The models and versions that a user can pick.

import { TASKS } from "./tasks.js";

export const ABSENT = "Not available";

/**
 * @typedef {{id: string, key: string, name: string, version: string | undefined, task: string | null,
 *            group: string, names: number, reason: string | null}} Choice
 * `id` stays the same when the models are listed again; `key` is of the version that answers; `names` is
 * how many classes have one.
 */

/**
 * Each model, and its older versions where several are ready.
 * @param {object[]} models as `Fovea.models` lists them
 * @returns {Choice[]} by task, with the reason where one cannot be picked; those come last
 */
export function choicesOf(models) {
  const all = models.flatMap((model) => {
    const others = model.versions.filter((each) => each.ready && each.version !== model.version);
    return [choice(model), ...others.reverse().map(({ version }) => choice(model, version))];
  });
  const groups = [...Object.values(TASKS).map(({ label }) => label), ABSENT];
  return all.sort((a, b) => groups.indexOf(a.group) - groups.indexOf(b.group));
}

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
  const ready = choices.filter(({ reason }) => !reason);
  return ready.find(({ id }) => id === kept) ?? ready[0];
}

function choice(model, version) {
  const { name, task } = model;
  const id = version === undefined ? name : `${name}, version ${version}`;
  const key = `${name}, version ${version ?? model.version}`;
  const reason = without(model);
  const group = reason ? ABSENT : TASKS[task]?.label ?? task;
  return { id, key, name, version, task, group, names: model.label_count, reason };
}

function without({ ready, accepts_images: takesImages }) {
  if (!ready) return "not ready";
  return takesImages ? null : "takes tensors";
}
