// Reads frames from the user's camera.

import { pick } from "./images.js";

/**
 * Yield each frame after its response, until `isOn` returns false.
 * @param {() => boolean} isOn
 * @param {(image: import("./images.js").Picked) => Promise<Error | undefined>} ask sends a frame, and resolves to the error if the request failed
 * @param {(error: Error | null) => void} onBusy called with the error when the server is busy, and with
 *     null after the wait
 */
export async function* film(isOn, ask, onBusy) {
  for await (const blob of frames(await openCamera())) {
    if (!isOn()) return;
    const image = await pick(blob, null, { name: "camera.jpg", onDisk: false });
    const error = await ask(image);
    if (!error) {
      yield image;
      continue;
    }
    URL.revokeObjectURL(image.url);
    if (![429, 503].includes(error.status)) throw error;
    onBusy(error);
    const until = performance.now() + 1000 * (error.retryAfterS ?? 1);
    while (isOn() && performance.now() < until) await new Promise((done) => setTimeout(done, 100));
    onBusy(null);
  }
}

/** Open the camera. If that fails, the message of the error explains to the user what to do. */
async function openCamera() {
  try {
    return await navigator.mediaDevices.getUserMedia({
      video: { facingMode: "environment", width: { ideal: 1280 } },
    });
  } catch (error) {
    throw new Error(
      error.name === "NotAllowedError"
        ? "The browser blocked the camera: allow it for this page in the address bar."
        : `The camera cannot be used (${error.message}).`,
    );
  }
}

/** Yield JPEG frames until the caller leaves the loop or the camera stops. Then close the camera. */
async function* frames(stream) {
  const video = document.createElement("video");
  Object.assign(video, { srcObject: stream, muted: true, playsInline: true });
  const canvas = document.createElement("canvas");
  try {
    await video.play();
    while (stream.active) {
      Object.assign(canvas, { width: video.videoWidth, height: video.videoHeight });
      canvas.getContext("2d").drawImage(video, 0, 0);
      yield await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
      await new Promise(requestAnimationFrame);
    }
  } finally {
    stream.getTracks().forEach((track) => track.stop());
  }
}
