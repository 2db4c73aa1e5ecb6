// The row of the user's images.

import { button, make, refill } from "./dom.js";

// Where each key goes from the image at `at`.
const STEPS = { ArrowLeft: (at) => at - 1, ArrowRight: (at) => at + 1 };
// In the row itself.
const ENDS = { Home: () => 0, End: (at, count) => count - 1 };

/** The image that a key leads to from the current one, if any. */
export const step = (key, images, current, steps = STEPS) =>
  images[steps[key]?.(images.indexOf(current), images.length)];

// Pixels of the row that are seen beside the current image.
const BESIDE = 6;
let shown = null;

/** Show a thumbnail of each image, if there are several, and of which there is an error; Tab leads to the current one, which is in view. */
export function showThumbnails(container, images, current, errorOf, onSelect, onRemove) {
  refill(container, (images.length < 2 ? [] : images).map((image, index) => {
    // Before it is loaded it has its width, too: the row would lose its place.
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
  // Where the user has scrolled to stays, until another image is chosen.
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

/** Scroll a row, and not the page, to one of its buttons and a little beside it. */
function reveal(row, button) {
  if (!button) return;
  const [outer, inner] = [row, button].map((each) => each.getBoundingClientRect());
  const [before, after] = [inner.left - outer.left - BESIDE, inner.right - outer.right + BESIDE];
  row.scrollLeft += Math.min(0, before) + Math.max(0, after);
}
