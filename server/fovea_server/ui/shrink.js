// Large images are sent smaller where the model sees no less of them: a photograph takes a fifth of the time.

/** Tasks whose answers have no pixels, which would be coarser. */
export const SHRUNK = ["detect", "pose", "obb", "classify"];

const MARGIN = 2; // Times what the model sees: scaling twice then changes nothing that can be seen.
const LEAST_BYTES = 256 * 1024; // Less is there as soon.
const LEAST_GAIN = 0.8; // Of the width.
const QUALITY = 0.92;

/** Whether it is worth asking what a model sees of an image. */
export const isLarge = ({ blob, unshown }) => blob.size >= LEAST_BYTES && !unshown;

/** An image as small as a model takes it, as `{blob, width, height}`; null where it is best as it is. */
export function shrinkImage(image, { preprocess }) {
  const share = preprocess ? shareOf(image, preprocess) : 1;
  if (share > LEAST_GAIN) return null;
  const [width, height] = [image.width, image.height].map((each) => Math.ceil(each * share));
  if (!image.smaller.has(width)) {
    image.smaller.set(width, encodeJpeg(image.blob, width, height).catch(() => null));
  }
  return image.smaller.get(width);
}

function shareOf(image, { width, height, fit, crop_ratio: margin = 1 }) {
  const sides = [width / image.width, height / image.height];
  return MARGIN * margin * (fit === "letterbox" ? Math.min(...sides) : Math.max(...sides));
}

async function encodeJpeg(file, width, height) {
  const bitmap = await createImageBitmap(file, {
    resizeWidth: width,
    resizeHeight: height,
    resizeQuality: "high",
    colorSpaceConversion: "none", // The server takes the numbers of the file, too.
  });
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  // JPEG has no transparency, and the server decides what becomes of it.
  for (let at = 3; at < data.length; at += 4) if (data[at] < 255) return null;
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", QUALITY));
  return blob?.size < file.size ? { blob, width, height, original: file } : null;
}

/** Change an answer about a smaller image to one about an image of this size. */
export function enlarge(answer, { width, height }) {
  const [x, y] = [width / answer.width, height / answer.height];
  const factors = { x1: x, x2: x, x, cx: x, w: x, y1: y, y2: y, y, cy: y, h: y };
  Object.assign(answer, { width, height });
  for (const { box, rotated, corners = [], keypoints = [] } of answer.detections ?? []) {
    for (const place of [box, rotated, ...corners, ...keypoints].filter(Boolean)) {
      for (const name of Object.keys(place)) {
        if (name in factors) place[name] = Math.round(100 * factors[name] * place[name]) / 100;
      }
    }
  }
}
