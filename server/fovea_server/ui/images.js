// The user's images: dropped, pasted, picked, or frames of the camera.

/** @typedef {{name: string, blob: Blob, url: string, width: number, height: number,
 *             onDisk: boolean, unshown: boolean, answers: Map<string, object>, requests: Map<string, object>,
 *             smaller: Map<number, Promise<object | null>>, similar: Map<string, Promise<object>>}} Picked
 * Answers, requests without an answer yet, and searches are by the key of a choice; smaller ones by their width. */

/** Prepare a file for the page. `measure` finds the size of what the browser cannot show. */
export async function pick(blob, measure, { name = blob.name, onDisk = true } = {}) {
  let url = URL.createObjectURL(blob);
  let shown = await decode(url);
  const unshown = !shown;
  if (unshown) {
    URL.revokeObjectURL(url);
    url = URL.createObjectURL(grey(await measure(blob)));
    shown = await decode(url);
  }
  const { naturalWidth: width, naturalHeight: height } = shown;
  const kept = { answers: new Map(), requests: new Map(), smaller: new Map(), similar: new Map() };
  return { name: name || "image.png", blob, url, width, height, onDisk, unshown, ...kept };
}

const grey = ({ width, height }) => new Blob([
  `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">`,
  '<rect width="100%" height="100%" fill="#777"/></svg>',
], { type: "image/svg+xml" });

async function decode(url) {
  const image = Object.assign(new Image(), { src: url });
  return image.decode().then(() => image, () => null);
}

/** An image of a blob, ready to be drawn. */
export async function rasterize(blob) {
  const image = Object.assign(new Image(), { src: URL.createObjectURL(blob) });
  await image.decode();
  URL.revokeObjectURL(image.src);
  return image;
}

/** Call back with files that are dropped anywhere on the page or pasted. */
export function watch(onFiles) {
  const { classList } = document.body;
  addEventListener("dragover", (event) => {
    event.preventDefault();
    classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) classList.remove("dropping");
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    classList.remove("dropping");
    onFiles([...event.dataTransfer.files], { onDisk: true });
  });
  addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length) onFiles(files, { onDisk: false });
  });
}
