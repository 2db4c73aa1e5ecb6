// Asks a server through a client of typescript-fetch, and prints what it answers.
import { openAsBlob } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { Configuration, ModelsApi, PredictApi, ResponseError } from "./fovea/index.js";
import type { ImageAnswer, Mask } from "./fovea/index.js";

const [url, image, broken, drawn] = process.argv.slice(2);
const configuration = new Configuration({ basePath: url });
const predict = new PredictApi(configuration);

function names(answer: ImageAnswer): string {
  if (answer.error) return answer.error.code;
  return (answer.detections ?? []).map((each) => each.className).sort().join(" ");
}

function form(mask: Mask): string {
  if (mask.counts) return "counts";
  return mask.polygons ? "polygons" : "png";
}

const body = await openAsBlob(image);
let answer = await predict.predict({ name: "digits", body, conf: 0.3 });
console.log("image:", answer.task, names(answer.images[0]));

answer = await predict.predictForm({ name: "digits", file: [body, await openAsBlob(broken)] });
console.log("two:", names(answer.images[0]), names(answer.images[1]));

const data = (await readFile(image)).toString("base64");
answer = await predict.predictJson({ name: "digits", predictJson: { images: [{ data }] } });
console.log("json:", names(answer.images[0]));

for (const mask of ["rle", "polygon", "png"] as const) {
  answer = await predict.predict({ name: "shapes", body, mask });
  console.log("mask:", form(answer.images[0].detections![0].mask!));
}

const picture = await predict.annotate({ name: "digits", body });
await writeFile(drawn, Buffer.from(await picture.arrayBuffer()));

const model = await new ModelsApi(configuration).getModel({ name: "digits" });
console.log("model:", model.task, model.labels!.length);

try {
  await predict.predict({ name: "nobody", body });
} catch (error) {
  if (!(error instanceof ResponseError)) throw error;
  console.log("error:", error.response.status, (await error.response.json()).error.code);
}
