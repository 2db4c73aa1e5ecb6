// Prepares the user's images: dropped, pasted or picked files, and frames of the camera.

/** @typedef {{name: string, blob: Blob, url: string, width: number, height: number,
 *             onDisk: boolean, unshown: boolean, answers: Map<string, object>, requests: Map<string, object>,
 *             smaller: Map<number, Promise<object | null>>, similar: Map<string, Promise<object>>}} Picked
 * `answers`, `requests` in flight and `similar` (searches) have the key of a `Choice` as their key.
 * `smaller` has the image in smaller sizes, by width. */

/** Prepare a file for the page. `measure` returns the size of an image that the browser cannot show. */
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

/** Return the decoded image, or null if the browser cannot decode it. */
async function decode(url) {
  const image = Object.assign(new Image(), { src: url });
  return image.decode().then(() => image, () => null);
}

/** Decode a blob into an image that a canvas can draw. */
export async function rasterize(blob) {
  const image = Object.assign(new Image(), { src: URL.createObjectURL(blob) });
  await image.decode();
  URL.revokeObjectURL(image.src);
  return image;
}

/** Call `onFiles` with files that the user drops on the page or pastes. */
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
