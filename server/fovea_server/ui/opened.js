// Adds to an open engine card the model's candidate version, and a button that unloads the shown version.

import { button, make } from "./dom.js";

/**
 * @param {import("./pane.js").Pane} pane pane whose card is open
 * @param {((pane: object) => void) | false} onUnload unloads the version; false if the user may not
 */
export async function showMore(fovea, pane, onUnload) {
  const { model, choice } = pane;
  const list = pane.card.querySelector("dl");
  const show = (term, shown) => list.append(make("dt", { textContent: term }), make("dd", {}, shown));
  if (onUnload && choice.version !== undefined && !list.querySelector("button")) {
    show("Beside", button("pill", "unload", () => onUnload(pane), `Unload version ${choice.version}`));
  }
  const path = `${fovea.url}/v1/models/${model.name}/shadow`;
  const answer = await fetch(path, { headers: fovea.headers });
  if (!answer.ok) return;
  const { version, state } = await answer.json();
  const link = list.querySelector("a") ?? make("a", { href: `${path}/report.md` });
  link.textContent = `version ${version}: ${state}`;
  if (!link.parentNode) show("Candidate", link);
}
