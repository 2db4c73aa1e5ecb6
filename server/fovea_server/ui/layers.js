// Switches for the layers over an image.

import { button } from "./dom.js";

const LAYERS = ["Labels", "Boxes", "Masks"];

/** Make a switch for each layer. A layer that is off adds a CSS class to the panes, such as `no-labels`. */
export function wireLayers(container, panes) {
  container.append(...LAYERS.map((name) => {
    const made = button("pill", name, () => {
      const off = panes.classList.toggle(`no-${name.toLowerCase()}`);
      made.setAttribute("aria-pressed", !off);
    }, name);
    made.setAttribute("aria-pressed", true);
    return made;
  }));
}

/** Return the CSS classes of the layers that are off, separated by spaces. */
export const layersOff = (panes) => [...panes.classList].filter((each) => each.startsWith("no-")).join(" ");

/** Show the switches of the layers that occur in these responses. */
export function showLayers(container, answers) {
  const objects = answers.flatMap((answer) => answer?.detections ?? []);
  const areas = answers.some((answer) => answer?.semantic);
  const maps = areas || answers.some((answer) => answer?.saliency || answer?.depth || answer?.picture);
  const there = [objects.length || areas, objects.length, maps || objects.some(({ mask }) => mask)].map(Boolean);
  there.forEach((each, index) => { container.children[index].hidden = !each; });
  container.hidden = !there.some(Boolean);
}
