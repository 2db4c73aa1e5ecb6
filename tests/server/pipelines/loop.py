"""Chains as engineers write them: runtimes, OpenCV and numpy, a crop at a time.

Nothing here is of the package. Images are BGR, as OpenCV reads them.
"""

from functools import cache
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import openvino
from PIL import Image


@cache
def session(path: Path, threads: int = 1) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@cache
def compiled(path: Path) -> openvino.CompiledModel:
    """Open a file with OpenVINO: ONNX Runtime makes NaN of some."""
    return openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def cut(image: np.ndarray, box) -> np.ndarray:
    """The pixels that a box touches."""
    x1, y1 = (max(int(np.floor(each)), 0) for each in box[:2])
    x2, y2 = (int(np.ceil(each)) for each in box[2:])
    return image[y1:y2, x1:x2]


def stretched(crop: np.ndarray, width: int, height: int) -> np.ndarray:
    """A row of BGR, 0 to 255."""
    small = cv2.resize(crop, (width, height), interpolation=cv2.INTER_LINEAR)
    return small.transpose(2, 0, 1)[None].astype(np.float32)


def vehicle(model: Path, crop: np.ndarray) -> dict[str, np.ndarray]:
    """The probabilities of each type, and of each colour."""
    kind, colour = session(model).run(["type", "color"], {"images": stretched(crop, 72, 72)})
    return {"type": kind.ravel(), "color": colour.ravel()}


def person(model: Path, crop: np.ndarray) -> np.ndarray:
    """A vector of length 1."""
    [vector] = compiled(model)([stretched(crop, 128, 256)]).values()
    return vector[0] / np.linalg.norm(vector[0])


def imagenet(model: Path, crop: np.ndarray) -> np.ndarray:
    """Probabilities, of a crop prepared as torchvision does it."""
    height, width = crop.shape[:2]
    short = min(height, width)
    size = int(256 * width / short), int(256 * height / short)
    small = Image.fromarray(crop[..., ::-1]).resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    pixels = np.asarray(small)[top : top + 224, left : left + 224] / 255
    row = (pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    given = {"input": row.transpose(2, 0, 1)[None].astype(np.float32)}
    [logits] = session(model).run(None, given)[0]
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()
