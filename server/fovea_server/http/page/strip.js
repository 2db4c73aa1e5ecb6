// The row of the user's images.

import { button, make, refill } from "./dom.js";

// Where each key goes from the image at `at`, of `count`.
const STEPS = {
  ArrowLeft: (at) => at - 1,
  ArrowRight: (at) => at + 1,
  Home: () => 0,
  End: (at, count) => count - 1,
};

/** Show a thumbnail of each image, if there are several; Tab leads to the current one. */
export function showThumbnails(container, images, current, onSelect) {
  refill(container, (images.length < 2 ? [] : images).map((image, index) => {
    const thumbnail = make("img", { src: image.url, alt: image.name });
    const made = button("", String(index), () => onSelect(image), thumbnail);
    made.setAttribute("aria-current", image === current);
    made.tabIndex = image === current ? 0 : -1;
    return make("li", {}, made);
  }));
  container.onkeydown = (event) => {
    const next = images[STEPS[event.key]?.(images.indexOf(current), images.length)];
    if (!next) return;
    event.preventDefault();
    onSelect(next);
    container.querySelector("[aria-current=true]").focus();
  };
}
