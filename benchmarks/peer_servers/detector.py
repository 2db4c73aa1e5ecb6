"""The detector that every peer serves: a YOLOv8 export in ONNX Runtime, as people write it."""

from __future__ import annotations

import cv2
import numpy as np
import onnxruntime

SIDE = 640
# Fovea's defaults.
CONF, IOU = 0.25, 0.7


class Detector:
    """Finds boxes on an encoded image.

    Args:
        path: of the ONNX file.
        threads: for an image; 0 for all cores.
    """

    def __init__(self, path: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name

    def __call__(self, data: bytes) -> list[dict[str, object]]:
        """Decode, letterbox, run, and suppress; returns boxes in pixels of the image."""
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        height, width = image.shape[:2]
        scale = SIDE / max(height, width)
        size = round(width * scale), round(height * scale)
        left, top = (SIDE - size[0]) // 2, (SIDE - size[1]) // 2
        canvas = np.full((SIDE, SIDE, 3), 114, np.uint8)
        canvas[top : top + size[1], left : left + size[0]] = cv2.resize(image, size)
        tensor = cv2.dnn.blobFromImage(canvas, 1 / 255, swapRB=True)
        [output] = self._session.run(None, {self._input: tensor})
        rows = output[0].T
        scores = rows[:, 4:].max(1)
        rows, scores = rows[scores > CONF], scores[scores > CONF]
        classes = rows[:, 4:].argmax(1)
        corners = rows[:, :2] - rows[:, 2:4] / 2 - (left, top)
        boxes = np.concatenate([corners, rows[:, 2:4]], 1) / scale
        kept = cv2.dnn.NMSBoxesBatched(boxes.tolist(), scores.tolist(), classes.tolist(), CONF, IOU)
        return [
            {
                "box": boxes[n].round(2).tolist(),
                "score": round(float(scores[n]), 4),
                "class_id": int(classes[n]),
            }
            for n in kept
        ]
