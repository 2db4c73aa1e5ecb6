// Makes and replaces elements.

/** Make an element. `about` has its properties, such as `textContent`. */
export function make(name, about = {}, ...children) {
  const made = Object.assign(document.createElement(name), about);
  made.append(...children);
  return made;
}

/** Make a button. `refill` uses the key to find the new button that replaces this one. */
export function button(className, key, onClick, ...children) {
  const made = make("button", { type: "button", className, onclick: onClick }, ...children);
  made.dataset.key = key;
  return made;
}

/** Replace the children. If one had the focus, focus the new child with the same key. */
export function refill(container, nodes) {
  const focused = document.activeElement;
  const key = container.contains(focused) ? focused.dataset.key : undefined;
  container.replaceChildren(...nodes);
  if (key !== undefined) container.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}
