// Shows the images of an index that are most similar to the current image, if the model computes embeddings.

import { make } from "./dom.js";

const MAX_SIMILAR = 12;
let wanted = null;

/** Show similar images. The page searches once for each image and model. Null hides the list. */
export async function showSimilar(container, fovea, image, { key, name, version } = {}) {
  container.hidden = !image;
  if (!image) {
    wanted = null;
    return;
  }
  if (!image.similar.has(key)) {
    image.similar.set(key, fovea.search(name, image.blob, { version, k: MAX_SIMILAR, thumbnails: true }));
  }
  const search = image.similar.get(key);
  if (wanted === search) return;
  wanted = search;
  container.replaceChildren(make("p", { className: "note", textContent: "Searching…" }));
  const shown = await search.then(makeMatches, (error) => {
    // Search again next time, because the index may exist by then.
    image.similar.delete(key);
    return [make("p", { className: "note", textContent: error.message })];
  });
  if (wanted === search) container.replaceChildren(...shown);
}

function makeMatches({ size, images: [{ matches }] }) {
  const title = make("p", { className: "summary", textContent: `Most similar of ${size} images:` });
  const rows = matches.map(({ name, score, thumbnail }) => make("li", { title: name },
    ...(thumbnail ? [make("img", { src: `data:image/jpeg;base64,${thumbnail}`, alt: "" })] : []),
    make("span", { className: "name", textContent: name }),
    make("b", { textContent: score.toFixed(3) })));
  return [title, make("ol", { className: "similar" }, ...rows)];
}
