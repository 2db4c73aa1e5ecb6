// The models and versions that a user can pick.

/**
 * @typedef {{id: string, key: string, name: string, version: string | undefined, task: string | null,
 *            reason: string | null}} Choice
 * `id` stays the same when the models are listed again; `key` is of the version that answers.
 */

/**
 * Each model, and its older versions where several are ready.
 * @param {object[]} models as `Fovea.models` lists them
 * @returns {Choice[]} with the reason where one cannot be picked; those come last
 */
export function choicesOf(models) {
  const all = models.flatMap((model) => {
    const others = model.versions.filter((each) => each.ready && each.version !== model.version);
    return [choice(model), ...others.reverse().map(({ version }) => choice(model, version))];
  });
  return [...all.filter(({ reason }) => !reason), ...all.filter(({ reason }) => reason)];
}

function choice(model, version) {
  const { name, task } = model;
  const id = version === undefined ? name : `${name}, version ${version}`;
  const key = `${name}, version ${version ?? model.version}`;
  return { id, key, name, version, task, reason: without(model) };
}

function without({ ready, accepts_images: takesImages }) {
  if (!ready) return "not ready";
  return takesImages ? null : "takes tensors";
}
