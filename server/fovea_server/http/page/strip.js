// The row of the user's images.

/** Show a thumbnail of each image, if there are several. */
export function showThumbnails(container, images, current, onSelect) {
  container.replaceChildren(...(images.length < 2 ? [] : images).map((image) => {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.setAttribute("aria-current", String(image === current));
    button.append(Object.assign(new Image(), { src: image.url, alt: image.name }));
    button.addEventListener("click", () => onSelect(image));
    const line = document.createElement("li");
    line.append(button);
    return line;
  }));
}
