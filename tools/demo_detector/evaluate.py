"""Measures the detector: COCO average precision on scenes of digits it never saw."""

import argparse
import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tools.demo_detector.network import DigitDetector
from tools.demo_detector.output import Decoded
from tools.demo_detector.pool import PAD
from tools.demo_detector.scenes import CLASS_NAMES, Layout, Scene, compose

SIDE = 320
SCENES = 400
# Held-out scenes are seeded from here; the sample scenes from elsewhere.
FIRST_SEED = 1_000_000
LAYOUTS = (Layout(320, 320), Layout(480, 360), Layout(640, 480), Layout(360, 480))
MINIMUM_SCORE, OVERLAP, MOST = 0.005, 0.6, 100

Array = NDArray[np.float32]
Predictor = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Figures:
    """COCO average precision at one overlap of 0.5, and over 0.5 to 0.95; AP50 by class."""

    map50: float
    map: float
    by_class: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Digits found in one image, best first; boxes are x1, y1, x2, y2 in its pixels."""

    boxes: Array
    scores: Array
    labels: NDArray[np.int64]


def heldout_scenes(count: int = SCENES) -> list[Scene]:
    """Scenes of digits and photographs that training never sees."""
    layouts = [LAYOUTS[index % len(LAYOUTS)] for index in range(count)]
    return [compose(FIRST_SEED + i, "heldout", layout) for i, layout in enumerate(layouts)]


def torch_predictor(model: DigitDetector) -> Predictor:
    """Predict with the network itself."""
    decoded = Decoded(model, SIDE).eval()

    def predict(images: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(decoded(torch.from_numpy(images)).numpy(), np.float32)

    return predict


def onnx_predictor(path: Path) -> Predictor:
    """Predict with the exported file."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run(None, {"images": images})[0], np.float32)


def detect(predict: Predictor, images: Sequence[NDArray[np.uint8]]) -> list[Found]:
    """Letterbox, predict, suppress doubles, map back."""
    boxed = [_letterbox(image) for image in images]
    raw = predict(np.stack([tensor for tensor, *_ in boxed]))
    return [
        _suppress(output, scale, offset)
        for output, (_, scale, offset) in zip(raw, boxed, strict=True)
    ]


def mean_average_precision(predict: Predictor, scenes: Sequence[Scene], batch: int = 4) -> Figures:
    """COCO's own calculation over a list of scenes."""
    found: list[Found] = []
    for start in range(0, len(scenes), batch):
        found += detect(predict, [scene.pixels for scene in scenes[start : start + batch]])
    with contextlib.redirect_stdout(io.StringIO()):
        truth = _truth(scenes)
        answers = [row for image, digits in enumerate(found) for row in _rows(image, digits)]
        judge = COCOeval(truth, truth.loadRes(answers), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    precision = judge.eval["precision"][0, :, :, 0, -1]
    by_class = tuple(float(value) for value in precision.mean(axis=0))
    return Figures(float(judge.stats[1]), float(judge.stats[0]), by_class)


def _letterbox(image: NDArray[np.uint8]) -> tuple[Array, float, Array]:
    height, width = image.shape[:2]
    scale = SIDE / max(height, width)
    size = (round(width * scale), round(height * scale))
    canvas = Image.new("RGB", (SIDE, SIDE), (PAD, PAD, PAD))
    offset = ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2)
    resized = Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)
    canvas.paste(resized, offset)
    tensor = np.asarray(canvas, np.float32).transpose(2, 0, 1) / np.float32(255.0)
    return tensor, scale, np.array([*offset, *offset], np.float32)


def _suppress(output: Array, scale: float, offset: Array) -> Found:
    """One box for each digit: of boxes that overlap, the surest stays."""
    scores, labels = output[4:].max(axis=0), output[4:].argmax(axis=0)
    order = np.argsort(-scores)[:300]
    order = order[scores[order] > MINIMUM_SCORE]
    centre, size = output[:2, order].T, output[2:4, order].T
    boxes: Array = np.concatenate((centre - size / 2, centre + size / 2), axis=1)
    kept: list[int] = []
    for row in range(len(order)):
        same = [other for other in kept if labels[order[other]] == labels[order[row]]]
        if not same or float(_iou(boxes[row], boxes[same]).max()) < OVERLAP:
            kept.append(row)
    kept = kept[:MOST]
    mapped = ((boxes[kept] - offset) / scale).astype(np.float32)
    return Found(mapped, scores[order[kept]], labels[order[kept]])


def _iou(box: Array, others: Array) -> Array:
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    areas = (others[:, 2:] - others[:, :2]).prod(axis=1)
    return np.asarray(shared / ((box[2:] - box[:2]).prod() + areas - shared + 1e-7), np.float32)


def _truth(scenes: Sequence[Scene]) -> COCO:
    truth = COCO()
    annotations: list[dict[str, object]] = []
    for image, scene in enumerate(scenes):
        for box, label in zip(scene.boxes.tolist(), scene.labels.tolist(), strict=True):
            wide, high = box[2] - box[0], box[3] - box[1]
            shape = {"bbox": [box[0], box[1], wide, high], "area": wide * high, "iscrowd": 0}
            own = {"id": len(annotations) + 1, "image_id": image, "category_id": label}
            annotations.append(shape | own)
    truth.dataset = {
        "info": {},
        "images": [{"id": index} for index in range(len(scenes))],
        "categories": [{"id": i, "name": name} for i, name in enumerate(CLASS_NAMES)],
        "annotations": annotations,
    }
    truth.createIndex()
    return truth


def _rows(image: int, found: Found) -> list[dict[str, object]]:
    return [
        {
            "image_id": image,
            "category_id": label,
            "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
            "score": score,
        }
        for box, score, label in zip(
            found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True
        )
    ]


def main() -> None:
    """Read the command line and measure an exported file."""
    parser = argparse.ArgumentParser(description="Measure an ONNX file on held-out scenes.")
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument("--scenes", type=int, default=SCENES, help="held-out scenes")
    parser.add_argument("--batch", type=int, default=4, help="images in a call")
    options = parser.parse_args()
    scenes = heldout_scenes(options.scenes)
    figures = mean_average_precision(onnx_predictor(options.model), scenes, options.batch)
    digits = sum(len(scene.labels) for scene in scenes)
    print(f"{len(scenes)} scenes, {digits} digits, batch {options.batch}")
    print(f"mAP50 {figures.map50:.4f}  mAP50-95 {figures.map:.4f}")
    print("  ".join(f"{n} {ap:.3f}" for n, ap in zip(CLASS_NAMES, figures.by_class, strict=True)))


if __name__ == "__main__":
    main()
