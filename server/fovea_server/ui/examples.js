// Chooses example images that suit a model.

import { rasterize } from "./images.js";
import { TASKS } from "./tasks.js";

// The drawing has a bus, a stop sign and a traffic light.
const STREET = { title: "A street", file: "street.svg" };
const DIGITS = [{ title: "Digits", file: "scene-1.jpg" }, { title: "More digits", file: "scene-2.jpg" }];
const DIGIT = { title: "A digit", file: "digit.jpg" };

/** Return the examples for a model. The argument is a result of `Fovea.model`. */
export function examplesOf({ task, labels }) {
  if (labels?.join("") === "0123456789") return task === "classify" ? [DIGIT] : DIGITS;
  if (TASKS[task]?.anything) return [STREET];
  return ["detect", "segment", "semantic"].includes(task) && labels?.includes("bus") ? [STREET] : [];
}

/** Fetch an example. An SVG becomes a JPEG, because the server cannot decode SVG. */
export async function fetchExample(file) {
  const answer = await fetch(new URL(file, import.meta.url));
  if (!answer.ok) throw new Error(`The server did not return ${file}`);
  const blob = await answer.blob();
  if (!file.endsWith(".svg")) return new File([blob], file, { type: blob.type });
  const image = await rasterize(blob);
  const canvas = Object.assign(document.createElement("canvas"), { width: image.naturalWidth, height: image.naturalHeight });
  canvas.getContext("2d").drawImage(image, 0, 0);
  const drawn = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  return new File([drawn], file.replace("svg", "jpg"), { type: drawn.type });
}
