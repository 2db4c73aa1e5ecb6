// Shrinks large images before the upload if the model's input is smaller anyway. A photograph then takes a
// fifth of the time.

/** Tasks without masks and maps, which would be coarser for a smaller image. */
export const SHRUNK = ["detect", "pose", "obb", "classify"];

// Size of the sent image, as a multiple of the model's input. At 2, scaling twice makes no visible difference.
const MARGIN = 2;
// Smallest file to shrink, in bytes. Smaller files upload as fast as shrunk ones.
const LEAST_BYTES = 256 * 1024;
// Largest width of a shrunk image, as a fraction of the original width.
const LEAST_GAIN = 0.8;
const QUALITY = 0.92;

/** Return whether shrinking an image may save time. */
export const isLarge = ({ blob, unshown }) => blob.size >= LEAST_BYTES && !unshown;

/**
 * Shrink an image to MARGIN times the model's input: `{blob, width, height, original}`. Return null if the
 * original should be sent.
 */
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
    // The server does not convert colours either.
    colorSpaceConversion: "none",
  });
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  // JPEG has no transparency, so the server must get the original.
  for (let at = 3; at < data.length; at += 4) if (data[at] < 255) return null;
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", QUALITY));
  return blob?.size < file.size ? { blob, width, height, original: file } : null;
}

/** Scale the coordinates of a response for a smaller image to an image of this size. */
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
