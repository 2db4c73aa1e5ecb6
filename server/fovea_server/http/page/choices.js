// The models and versions that a user can pick.

/**
 * @typedef {{key: string, name: string, version: string | undefined, label: string,
 *            reason: string | null}} Choice
 */

/**
 * Each model, and its older versions where several are ready.
 * @param {object[]} models as `Fovea.models` lists them
 * @returns {Choice[]} with the reason where one cannot be picked; those come last
 */
export function choicesOf(models) {
  const all = models.flatMap((model) => {
    const others = model.versions.filter((each) => each.ready && each.version !== model.version);
    return [
      choice(model, undefined, without(model)),
      ...others.reverse().map(({ version }) => choice(model, version, without(model))),
    ];
  });
  return [...all.filter(({ reason }) => !reason), ...all.filter(({ reason }) => reason)];
}

function choice({ name }, version, reason) {
  const key = version === undefined ? name : `${name}, version ${version}`;
  return { key, name, version, reason, label: reason ? `${key} (${reason})` : key };
}

function without({ ready, accepts_images: takesImages }) {
  if (!ready) return "not ready";
  return takesImages ? null : "takes tensors";
}
