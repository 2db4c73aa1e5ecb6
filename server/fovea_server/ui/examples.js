// Images to try a model with, where there are some that it was made for.

import { rasterize } from "./images.js";
import { TASKS } from "./tasks.js";

const STREET = { title: "A street", file: "street.svg" }; // A bus, a stop sign and a traffic light.
const DIGITS = [{ title: "Digits", file: "scene-1.jpg" }, { title: "More digits", file: "scene-2.jpg" }];
const DIGIT = { title: "A digit", file: "digit.jpg" };

/** The examples for a model, as `Fovea.model` describes it. */
export function examplesOf({ task, labels }) {
  if (labels?.join("") === "0123456789") return task === "classify" ? [DIGIT] : DIGITS;
  if (TASKS[task]?.anything) return [STREET];
  return ["detect", "segment", "semantic"].includes(task) && labels?.includes("bus") ? [STREET] : [];
}

/** Fetch an example as an image that models take: they read no SVG. */
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
