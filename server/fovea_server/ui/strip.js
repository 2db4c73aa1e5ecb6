// Shows the row of thumbnails.

import { button, make, refill } from "./dom.js";

// The index of the image that each key selects, if the current one has the index `at`.
const STEPS = { ArrowLeft: (at) => at - 1, ArrowRight: (at) => at + 1 };
// Further keys while a thumbnail has the focus.
const ENDS = { Home: () => 0, End: (at, count) => count - 1 };

/** Return the image that a key selects, or undefined. */
export const step = (key, images, current, steps = STEPS) =>
  images[steps[key]?.(images.indexOf(current), images.length)];

// Space that stays visible beside the current thumbnail, in pixels.
const BESIDE = 6;
let shown = null;

/**
 * Show thumbnails if there are several images. Thumbnails of images with an error are marked. The current
 * thumbnail is in view, and it is the only one that Tab focuses.
 */
export function showThumbnails(container, images, current, errorOf, onSelect, onRemove) {
  refill(container, (images.length < 2 ? [] : images).map((image, index) => {
    // Without a size, the row would jump when the thumbnail loads.
    const style = `aspect-ratio: ${image.width} / ${image.height}`;
    const error = errorOf(image);
    const alt = error ? `${image.name}: ${error.message}` : image.name;
    const thumbnail = make("img", { src: image.url, alt, style });
    const made = button(error ? "failed" : "", String(index), () => onSelect(image), thumbnail);
    made.title = error ? alt : "";
    made.setAttribute("aria-current", image === current);
    made.tabIndex = image === current ? 0 : -1;
    return make("li", {}, made);
  }));
  // The row stays where the user has scrolled it, until another image is selected.
  if (current !== shown) reveal(container, container.querySelector("[aria-current=true]"));
  shown = current;
  container.onkeydown = (event) => {
    const next = step(event.key, images, current, { ...STEPS, ...ENDS });
    if (next) onSelect(next);
    else if (event.key === "Delete") onRemove(current);
    else return;
    event.preventDefault();
    container.querySelector("[aria-current=true]")?.focus();
  };
}

/** Scroll a row to one of its buttons, without scrolling the page. */
function reveal(row, button) {
  if (!button) return;
  const [outer, inner] = [row, button].map((each) => each.getBoundingClientRect());
  const [before, after] = [inner.left - outer.left - BESIDE, inner.right - outer.right + BESIDE];
  row.scrollLeft += Math.min(0, before) + Math.max(0, after);
}
