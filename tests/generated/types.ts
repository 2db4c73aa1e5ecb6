// Asks a server with openapi-fetch and the types of openapi-typescript, and prints what it answers.
import { readFile, writeFile } from "node:fs/promises";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const [url, image, broken, drawn] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url });
const bytes = await readFile(image);
// The types call a file text, and it goes as it is.
const file = { body: bytes as unknown as string, bodySerializer: (body: unknown) => body as Buffer };
const headers = { "Content-Type": "application/octet-stream" };

function names(answer: components["schemas"]["ImageAnswer"]): string {
  if (answer.error) return answer.error.code;
  return (answer.detections ?? []).map((each) => each.class_name).sort().join(" ");
}

function form(mask: components["schemas"]["Mask"]): string {
  if (mask.counts) return "counts";
  return mask.polygons ? "polygons" : "png";
}

async function predict(name: string, query = {}) {
  const params = { path: { name }, query };
  return client.POST("/v1/models/{name}/predict", { params, ...file, headers });
}

const { data: answer } = await predict("digits", { conf: 0.3 });
console.log("image:", answer!.task, names(answer!.images[0]));

const params = { path: { name: "digits" } };
const images = [bytes, await readFile(broken)].map((each) => ({ data: each.toString("base64") }));
const two = await client.POST("/v1/models/{name}/predict/json", { params, body: { images } });
console.log("two:", two.data!.images.map(names).join(" "));
console.log("json:", names(two.data!.images[0]));

for (const mask of ["rle", "polygon", "png"]) {
  const { data } = await predict("shapes", { mask });
  console.log("mask:", form(data!.images[0].detections![0].mask!));
}

const picture = await client.POST("/v1/models/{name}/annotate", {
  params,
  ...file,
  headers,
  parseAs: "arrayBuffer",
});
await writeFile(drawn, Buffer.from(picture.data!));

const model = await client.GET("/v1/models/{name}", { params });
console.log("model:", model.data!.task, model.data!.labels!.length);

const { error, response } = await predict("nobody");
console.log("error:", response.status, error!.error.code);
