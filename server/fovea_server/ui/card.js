// The text of the engine card: the engine, its source, and how closely their results agree.

import { percent } from "./found.js";

/** Return pairs of a term and its text. `model` is the response of `GET /v1/models/{name}`. */
export function cardRows(model) {
  const { card } = model;
  const rows = [
    ["Task", model.task],
    ["Engine", [model.backend, card?.backend_version].filter(Boolean).join(" ")],
    ["Precision", model.precision?.toUpperCase()],
    ["Version", versions(model)],
    ["Input", model.inputs.map((each) => input(each, model.max_batch_size)).join("; ")],
    ["Preprocessing", [preprocessing(model.preprocess), card?.preprocess_from].filter(Boolean).join("; ")],
    ["Classes", model.label_count || null],
  ];
  if (!card) return dropEmpty([...rows, ["Card", model.card_reason]]);
  return dropEmpty([
    ...rows,
    ["Accuracy", accuracy(card)],
    ["Agreement", agreement(card)],
    ["Checked on", card.device],
    ["Head", card.family && `${card.family}: ${card.reason}`],
    ["Calibration", card.calibration && `${card.calibration.method}, ${card.calibration.images} images`],
    ["Built", card.created && new Date(card.created).toLocaleString()],
    ["Built from", source(card)],
  ]);
}

const dropEmpty = (rows) => rows.filter(([, text]) => text);

function versions({ version, versions: all }) {
  const others = all.filter((each) => each.version !== version);
  const listVersions = (ready) => others.filter((each) => each.ready === ready).map((each) => each.version).join(", ");
  const [served, absent] = [listVersions(true), listVersions(false)];
  return [version, served && `also served: ${served}`, absent && `not loaded: ${absent}`].filter(Boolean).join("; ");
}

function input({ shape, datatype }, most) {
  const [rows, ...row] = shape.map((size) => (size < 0 ? "any" : size));
  const batch = rows === "any" && most ? (most === 1 ? 1 : `1 to ${most}`) : rows;
  return `${batch === "any" ? "any batch" : `batch ${batch}`}, ${[row.join(" × "), datatype].join(" ")}`;
}

/** Describe the steps of a `PreprocessSpec`. */
function preprocessing(spec) {
  if (!spec) return null;
  const size = `${spec.width} × ${spec.height}`;
  const short = Math.round(spec.crop_ratio * Math.min(spec.width, spec.height));
  const fit = {
    letterbox: `letterboxed to ${size}`,
    stretch: `stretched to ${size}`,
    "center-crop": `short side to ${short}, the middle ${size}`,
  }[spec.fit];
  const factor = 1 / spec.scale;
  const values = spec.scale === 1 ? "0 to 255" : `/ ${Number(factor.toPrecision(4))}`;
  const mean = spec.mean.some(Boolean) && `− mean ${spec.mean.join(" ")}`;
  const std = spec.std.some((each) => each !== 1) && `/ std ${spec.std.join(" ")}`;
  return [fit, spec.channels, values, mean, std].filter(Boolean).join(", ");
}

function accuracy({ accuracy: measured }) {
  return Object.entries(measured).map(([precision, figures]) => {
    const name = figures.map50_95 === undefined ? "top-1" : "mAP50-95";
    return `${precision.toUpperCase()} ${name} ${(figures.map50_95 ?? figures.top1).toFixed(3)}`;
  }).join(", ");
}

/** Describe how closely the results of the engine and of its ONNX file agree. */
function agreement({ agreement: found, precision }) {
  if (!found) return null;
  const images = `${found.images} ${found.images === 1 ? "image" : "images"}`;
  if (precision === "fp32" && found.detections) {
    return `within ${round(found.box_px)} px and ${round(found.score)} of score on ${images}`;
  }
  const agreed = `${percent(found.quality)} on ${images}`;
  if (!found.detections) return agreed;
  return `${agreed}, ${found.missed} missed and ${found.extra} extra of ${found.detections}`;
}

const round = (value) => Number(value.toPrecision(2)).toString();

function source({ onnx_sha256: digest, metadata }) {
  const about = [metadata.description, metadata.author, metadata.license].filter(Boolean).join(", ");
  return [`ONNX, SHA-256 ${digest.slice(0, 12)}…`, about].filter(Boolean).join("; ");
}
