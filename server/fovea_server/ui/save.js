// Saves files, and images with their results in full size.

import { draw } from "./draw.js";
import { rasterize } from "./images.js";

// Longer side of the image for which labels are placed, in pixels.
const DRAWN_PX = 1280;
// Gap between two compared images, as a fraction of the width.
const GAP = 0.01;

/** Let the browser save a blob. */
export function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/**
 * Draw the image of each pane with its results, side by side. Return a JPEG.
 * @param {import("./pane.js").Pane[]} panes
 * @param {string} hidden CSS classes of the layers that are off
 */
export async function picture(panes, hidden) {
  const { naturalWidth: width, naturalHeight: height } = panes[0].image;
  const step = Math.round(width * (1 + GAP));
  const canvas = Object.assign(document.createElement("canvas"), { width: step * (panes.length - 1) + width, height });
  const context = canvas.getContext("2d");
  for (const [index, pane] of panes.entries()) {
    const place = [index * step, 0, width, height];
    const { layers: { canvas: masks } } = pane;
    context.globalAlpha = 1;
    context.drawImage(pane.image, ...place);
    context.globalAlpha = masks.style.opacity;
    if (masks.width && !hidden.includes("no-masks")) context.drawImage(masks, ...place);
    context.globalAlpha = 1;
    if (pane.last) context.drawImage(await outlines(pane, hidden, width, height), ...place);
  }
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
}

/** Return the outlines and labels of a pane as an image of this size. */
async function outlines(pane, hidden, width, height) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const shown = [width, height].map((each) => (DRAWN_PX * each) / Math.max(width, height));
  svg.setAttribute("class", `unseen ${hidden}`);
  svg.style.width = `${shown[0]}px`;
  svg.style.height = `${shown[1]}px`;
  document.body.append(svg);
  pane.drawInto({ svg });
  svg.remove();
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  style.textContent = [...document.styleSheets[0].cssRules].map(({ cssText }) => cssText).join("\n");
  svg.prepend(style);
  svg.removeAttribute("style");
  svg.setAttribute("class", hidden);
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${shown.join(" ")}` })) {
    svg.setAttribute(name, value);
  }
  return rasterize(new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" }));
}
