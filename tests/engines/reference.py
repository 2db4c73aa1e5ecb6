"""Boxes from an independent reference: plain numpy, slow and obvious, nothing of the package.

`python tests/engines/reference.py --write` runs the real models of ../shared with ONNX Runtime
and stores what they find in `reference_boxes.json`, in pixels of the original image.
"""

import argparse
import json
import math
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

HERE = Path(__file__).resolve().parent
STORED = HERE / "reference_boxes.json"
SHARED = HERE.parents[2] / "shared"
MODELS = {
    "yolov8n": "yolov8",
    "yolov5n": "yolov5",
    "yolov10n": "yolov10",
    "yolox_nano": "yolox",
}
IMAGES = (
    "bus.jpg",
    "coco64/val/000000000139.jpg",
    "coco64/val/000000000285.jpg",
    "coco64/val/000000000632.jpg",
    "coco64/val/000000000724.jpg",
)


def letterbox(bgr, height, width, family):
    """Tensor [1, 3, height, width], scale and offsets of the image in it."""
    scale = min(height / bgr.shape[0], width / bgr.shape[1])
    # YOLOX cuts the fraction off; the others round.
    whole = int if family == "yolox" else round
    new_height, new_width = whole(bgr.shape[0] * scale), whole(bgr.shape[1] * scale)
    small = cv2.resize(bgr, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    top = left = 0
    if family != "yolox":
        top = round((height - new_height) / 2 - 0.1)
        left = round((width - new_width) / 2 - 0.1)
    canvas = np.full((height, width, 3), 114, np.uint8)
    canvas[top : top + new_height, left : left + new_width] = small
    if family == "yolox":
        image = canvas.astype(np.float32)
    else:
        image = canvas[:, :, ::-1].astype(np.float32) / 255
    return image.transpose(2, 0, 1)[None].copy(), scale, left, top


def yolov8(output, height, width):
    for column in output.T:
        yield (*column[:4], column[4:], 1.0)


def yolov5(output, height, width):
    for row in output:
        yield (*row[:4], row[5:], row[4])


def yolox(output, height, width):
    index = 0
    for stride in (8, 16, 32):
        for y in range(height // stride):
            for x in range(width // stride):
                row = output[index]
                index += 1
                cx, cy = (row[0] + x) * stride, (row[1] + y) * stride
                w, h = math.exp(row[2]) * stride, math.exp(row[3]) * stride
                yield cx, cy, w, h, row[5:], row[4]


GRIDS = {"yolov8": yolov8, "yolov5": yolov5, "yolox": yolox}


def decode(output, family, height, width, conf):
    """Candidates of one image: a list of (x1, y1, x2, y2, score, class)."""
    if family == "yolov10":
        return [(*map(float, row[:5]), int(row[5])) for row in output if row[4] >= conf]
    found = []
    for cx, cy, w, h, classes, objectness in GRIDS[family](output, height, width):
        best = int(np.argmax(classes))
        score = float(classes[best]) * float(objectness)
        if score >= conf:
            box = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
            found.append((*map(float, box), score, best))
    return found


def overlap(a, b):
    """Intersection over union of two boxes."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union > 0 else 0.0


def suppress(found, iou, agnostic=False):
    """Indices kept by greedy suppression, best first; equal scores in the order given."""
    kept = []
    for i in sorted(range(len(found)), key=lambda i: (-found[i][4], i)):
        rivals = [k for k in kept if agnostic or found[k][5] == found[i][5]]
        if all(overlap(found[k], found[i]) <= iou for k in rivals):
            kept.append(i)
    return kept


def detect(session, family, image, conf=0.25, iou=0.7):
    """(x1, y1, x2, y2, score, class) in pixels of the image, best first, within it."""
    taken = session.get_inputs()[0]
    height, width = taken.shape[2:]
    tensor, scale, left, top = letterbox(image, height, width, family)
    output = session.run(None, {taken.name: tensor})[0][0]
    found = decode(output, family, height, width, conf)
    kept = range(len(found)) if family == "yolov10" else suppress(found, iou)
    answer = []
    for x1, y1, x2, y2, score, class_id in (found[i] for i in kept):
        xs = [min(max((x - left) / scale, 0), image.shape[1]) for x in (x1, x2)]
        ys = [min(max((y - top) / scale, 0), image.shape[0]) for y in (y1, y2)]
        box = [round(v, 2) for v in (xs[0], ys[0], xs[1], ys[1])]
        answer.append({"box": box, "score": round(score, 4), "class_id": class_id})
    return sorted(answer, key=lambda item: -item["score"])


def everything():
    """What is stored: {model: {image: detections}}."""
    stored = {}
    for model, family in MODELS.items():
        path = SHARED / "models" / f"{model}.onnx"
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        stored[model] = {
            name: detect(session, family, cv2.imread(str(SHARED / "data" / name)))
            for name in IMAGES
        }
    return stored


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    lines = json.dumps(everything(), indent=1)
    STORED.write_text(lines + "\n")
