// Controls for the options of requests.

import { TILED } from "./request.js";
import { SHRUNK } from "./shrink.js";
import { TASKS } from "./tasks.js";

const SLIDERS = ["conf", "iou", "overlap"];
const at = (id) => document.getElementById(id);

/**
 * Store the options that the user sets. `onInput` is called while a slider moves, `onChange` when the user
 * releases it.
 */
export function wireOptions(options, onInput, onChange) {
  for (const id of SLIDERS) {
    const update = () => {
      options[id] = Number(at(id).value);
      at(`${id}-value`).textContent = options[id].toFixed(2);
    };
    at(id).addEventListener("input", () => {
      update();
      onInput();
    });
    at(id).addEventListener("change", onChange);
    update();
  }
  at("tile").addEventListener("change", ({ target }) => {
    target.value = target.value.trim();
    if (!target.reportValidity()) return;
    options.tile = target.value;
    at("overlapping").hidden = !options.tile;
    onInput();
    onChange();
  });
  at("shrink").addEventListener("change", ({ target }) => {
    options.shrink = target.checked;
    onInput();
    onChange();
  });
}

/** Show the controls that apply to these tasks, and the panel while classes are chosen. */
export function showOptions(tasks, chosen) {
  const scored = tasks.some((task) => (TASKS[task]?.kind ?? "detections") === "detections");
  const tiled = tasks.some((task) => TILED.includes(task));
  const shrinks = tasks.some((task) => SHRUNK.includes(task));
  at("conf").parentElement.hidden = !scored;
  at("iou").parentElement.hidden = !tiled;
  at("shrinking").hidden = !shrinks;
  at("options").hidden = !scored && !shrinks && !chosen.size;
  at("tiling").hidden = !tiled;
}
