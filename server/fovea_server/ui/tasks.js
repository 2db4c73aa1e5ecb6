// The name of each task, and the items, sentences and sample code for its results.

/**
 * Tasks in the order of the model list: name in the list, and kind of the results. `anything` is true if
 * every image is a good example.
 */
export const TASKS = {
  detect: { label: "Object detection", kind: "detections" },
  segment: { label: "Instance segmentation", kind: "detections" },
  pose: { label: "Pose estimation", kind: "detections" },
  obb: { label: "Oriented boxes", kind: "detections" },
  text: { label: "Text detection", kind: "detections" },
  classify: { label: "Classification", kind: "classes" },
  semantic: { label: "Semantic segmentation", kind: "semantic" },
  saliency: { label: "Background removal", kind: "saliency", anything: true },
  depth: { label: "Depth estimation", kind: "depth", anything: true },
  image: { label: "Image-to-image", kind: "picture", anything: true },
  read: { label: "Text recognition", kind: "reading" },
  attributes: { label: "Attributes", kind: "attributes" },
  embed: { label: "Embedding", kind: "embedding", anything: true },
};

/**
 * Kinds of results, by the field of an `ImageAnswer` that has them. `words` names the results in a sentence.
 * `items` returns the items to list, the best first, each with a `class_name` and a `score`. `python` and
 * `javascript` are the lines of code that print the results. `withClass` returns the parts that have a
 * class; the page shows the id of a class without a name. `describe` returns a sentence about the results;
 * without it, the sentence is about the items. `alone` is true if the results of two models cannot be
 * compared.
 */
export const KINDS = {
  detections: {
    words: "boxes",
    items: (found) => found,
    withClass: (found) => found,
    python: [
      "    for each in found.detections:",
      '        print(f"{each.class_name} {each.score:.2f} {each.box}")',
    ],
    javascript: [
      "for (const { class_name, score, box } of found.detections) {",
      "  console.log(class_name, score.toFixed(2), box);",
      "}",
    ],
  },
  classes: {
    words: "classes of the whole image",
    items: (found) => found,
    withClass: (found) => found,
    python: [
      "    for each in found.classes:",
      '        print(f"{each.class_name} {each.score:.2f}")',
    ],
    javascript: [
      "for (const { class_name, score } of found.classes) {",
      "  console.log(class_name, score.toFixed(2));",
      "}",
    ],
  },
  semantic: {
    words: "areas of classes",
    items: (found) => found.classes.map((each) => ({ ...each, score: each.share })),
    withClass: (found) => found.classes,
    python: [
      "    for each in found.image.semantic.classes:",
      '        print(f"{each.class_name} {each.share:.3f}")',
    ],
    javascript: [
      "for (const { class_name, share } of found.semantic.classes) {",
      "  console.log(class_name, share.toFixed(3));",
      "}",
    ],
  },
  saliency: {
    words: "a foreground",
    items: ({ share }) => [{ class_id: 0, class_name: "foreground", score: share }],
    alone: true,
    python: ["    print(found.image.saliency.share)"],
    javascript: ["console.log(found.saliency.share);"],
  },
  depth: {
    words: "depths",
    items: () => [],
    describe({ min, max, unit }) {
      const [from, to] = [min, max].map((each) => each.toPrecision(3));
      return `Depths from ${from} to ${to}${unit ? ` ${unit}` : ""}.`;
    },
    alone: true,
    python: ["    print(found.image.depth.min, found.image.depth.max)"],
    javascript: ["console.log(found.depth.min, found.depth.max);"],
  },
  attributes: {
    words: "attributes",
    items: (found) => found.flatMap(({ name, classes }) =>
      classes.map((each) => ({ ...each, class_name: `${name}: ${each.class_name}` }))),
    describe: (found) => `${found.map(({ name, exclusive, classes }) => {
      const likely = exclusive ? classes.slice(0, 1) : classes.filter(({ score }) => score >= 0.5);
      return `${name}: ${likely.map((each) => each.class_name).join(", ") || "none"}`;
    }).join("; ")}.`,
    python: [
      "    for each in found.image.attributes:",
      "        print(*each.lines)",
    ],
    javascript: [
      "for (const { name, classes: [best] } of found.attributes) {",
      "  console.log(name, best.class_name, best.score.toFixed(2));",
      "}",
    ],
  },
  picture: {
    words: "a picture",
    items: () => [],
    describe: ({ width, height }) => `A picture of ${width} x ${height} pixels.`,
    alone: true,
    python: ["    print(found.image.picture.pixels.shape)"],
    javascript: ["console.log(found.picture.width, found.picture.height);"],
  },
  reading: {
    words: "a text",
    items: () => [],
    describe: ({ text, score }) => (text ? `“${text}”, score ${score.toFixed(2)}.` : "No text."),
    alone: true,
    python: ["    print(found.image.reading.text)"],
    javascript: ["console.log(found.reading.text);"],
  },
  embedding: {
    words: "vectors",
    items: () => [],
    describe: (found) => `A vector of ${vectorOf(found).length} numbers, norm ${found.norm.toPrecision(4)}.`,
    alone: true,
    python: ["    print(found.image.embedding.vector)"],
    javascript: [
      "const bytes = Buffer.from(found.embedding.data, \"base64\");",
      "console.log(new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4));",
    ],
  },
};

/** Return the kind of a response's results. Responses of different kinds cannot be compared. */
export const kindOf = (answer) => Object.keys(KINDS).find((kind) => answer[kind]);

/** Return the numbers of an embedding. The server sends them in base64 by default. */
export const vectorOf = ({ data }) =>
  new Float32Array(Uint8Array.from(atob(data), (each) => each.charCodeAt(0)).buffer);
