// Elements, made and replaced.

/** An element; `about` are properties of it, such as `textContent`. */
export function make(name, about = {}, ...children) {
  const made = Object.assign(document.createElement(name), about);
  made.append(...children);
  return made;
}

/** A button that `refill` knows again by its key. */
export function button(className, key, onClick, ...children) {
  const made = make("button", { type: "button", className, onclick: onClick }, ...children);
  made.dataset.key = key;
  return made;
}

/** Replace the children, and leave the focus where it was. */
export function refill(container, nodes) {
  const focused = document.activeElement;
  const key = container.contains(focused) ? focused.dataset.key : undefined;
  container.replaceChildren(...nodes);
  if (key !== undefined) container.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}
