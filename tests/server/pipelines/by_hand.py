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
from tools.demo_models.plates import CHARACTERS, HEIGHT, WIDTH

ARCFACE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655],
     [70.7299, 92.2041]]
)  # fmt: skip
"""Where eyes, nose and corners of the mouth are on a face of 112 x 112 pixels."""


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


def similarity(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The turn, size and shift that bring points nearest to a target (Umeyama, 1991)."""
    middle, aim = points.mean(axis=0), target.mean(axis=0)
    own, theirs = points - middle, target - aim
    left, sizes, right = np.linalg.svd(theirs.T @ own / len(points))
    signs = np.array([1, np.sign(np.linalg.det(left) * np.linalg.det(right))])
    turn = left @ np.diag(signs) @ right
    scale = (sizes * signs).sum() / own.var(axis=0).sum()
    return np.column_stack([scale * turn, aim - scale * turn @ middle])


def upright(image: np.ndarray, points) -> np.ndarray:
    """A face of 112 x 112 pixels whose five points are where networks expect them."""
    moved = similarity(np.array(points, np.float64), ARCFACE)
    return cv2.warpAffine(image, moved, (112, 112), flags=cv2.INTER_LINEAR)


def face(model: Path, crop: np.ndarray) -> np.ndarray:
    """A vector of length 1, of RGB from -1 to 1."""
    row = (crop[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) - 127.5) / 127.5
    [vector] = session(model).run(None, {"face": row})[0]
    return vector / np.linalg.norm(vector)


def plate(model: Path, pixels: np.ndarray) -> tuple[str, float]:
    """The text of BGR pixels, and the mean score of its characters."""
    height, width = pixels.shape[:2]
    scale = min(HEIGHT / height, WIDTH / width)
    size = int(width * scale), int(height * scale)
    row = np.full((HEIGHT, WIDTH, 3), 127, np.uint8)
    row[: size[1], : size[0]] = cv2.resize(pixels, size)
    given = (row.transpose(2, 0, 1)[None].astype(np.float32) / 255 - 0.5) / 0.5
    [steps] = session(model).run(None, {"images": given})[0]
    best = steps.argmax(axis=1)
    kept = [i for i, at in enumerate(best) if at and (i == 0 or best[i - 1] != at)]
    score = steps.max(axis=1)[kept].mean() if kept else 0
    return "".join(CHARACTERS[best[i] - 1] for i in kept), score
