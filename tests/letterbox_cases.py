"""What the letterbox kernel must do as the host does it, on a GPU and compiled for the CPU."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from fovea_engines.backends.tensorrt.cuda.driver import Device
from fovea_engines.backends.tensorrt.cuda.letterbox import LetterboxKernel, packed_size
from fovea_preprocess.image import decode_image
from fovea_preprocess.letterbox import fit
from fovea_preprocess.preprocessor import PlacedImage, Preprocessor
from fovea_preprocess.spec import PreprocessSpec

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
SPECS = {
    "yolo": PreprocessSpec(640, 640),
    "image front": PreprocessSpec(384, 640, dtype="uint8", layout="NHWC"),
    "yolox": PreprocessSpec(
        416, 416, anchor="top-left", channels="BGR", scale=1.0, dtype="float16"
    ),
    "never enlarged": PreprocessSpec(
        320, 333, max_scale=1.0, pad=0, dtype="float16", layout="NHWC", **IMAGENET
    ),
    "stretched": PreprocessSpec(250, 333, fit="stretch", dtype="uint8", channels="BGR"),
    "antialias": PreprocessSpec(250, 333, fit="stretch", resample="antialias"),
    "classifier": PreprocessSpec(
        224, 224, fit="center-crop", crop_ratio=256 / 224, layout="NHWC", **IMAGENET
    ),
    "whole numbers": PreprocessSpec(192, 256, dtype="int32", layout="NHWC", pad=0),
    "whole crop": PreprocessSpec(96, 224, fit="center-crop", dtype="uint8"),
}
SIZES = [(1, 1), (7, 5), (640, 640), (1280, 720), (37, 2000), (40000, 40), (417, 415)]


def real_images(shared: Path) -> list[np.ndarray]:
    """Photographs upright and lying, one of them shrunk by half and enlarged as well."""
    files = [shared / "data" / "bus.jpg", *sorted((shared / "data/coco64/val").iterdir())[:5]]
    images = [decode_image(file.read_bytes()).pixels for file in files]
    return [*images, images[0][::2, ::2], cv2.resize(images[1], (2200, 1300))]


def noise() -> list[np.ndarray]:
    """What shows every slip of a weight, in sizes at the edge of what there is."""
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (high, wide, 3), np.uint8) for wide, high in SIZES]


def placed(spec: PreprocessSpec, images: Sequence[np.ndarray]) -> list[PlacedImage]:
    """Images as they are, of whatever size."""
    return [PlacedImage(p, fit(spec, p.shape[1], p.shape[0])) for p in images]


def letterboxed(
    device: Device, compiled: bytes, spec: PreprocessSpec, images: Sequence[np.ndarray], rows: int
) -> np.ndarray:
    """The batch that the kernel makes of images."""
    batch = np.empty((rows, *spec.row_shape), spec.dtype)
    with device.current():
        stream, kernel = device.stream(), LetterboxKernel(device, compiled, spec)
        staging = device.pinned(packed_size(rows, sum(p.nbytes for p in images)))
        staged, made = device.alloc(staging.array.size), device.alloc(batch.nbytes)
        result = device.pinned(batch.nbytes)
        try:
            size = kernel.pack(placed(spec, images), rows, staging)
            device.copy_in(staged, staging, size, stream)
            kernel(stream, staged, rows, made)
            device.copy_out(result, made, batch.nbytes, stream)
            stream.synchronize()
            batch[...] = result.array.view(spec.dtype).reshape(batch.shape)
        finally:
            for taken in (kernel, staging, staged, made, result, stream):
                taken.close()
    return batch


def differences(
    batch: np.ndarray, spec: PreprocessSpec, images: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """How far each row is from the host's, in grey levels."""
    host = Preprocessor(spec)
    levels = np.ones(3) if spec.whole else np.array(spec.std) / spec.scale
    levels = levels[:, None, None] if spec.layout == "NCHW" else levels
    for row, image in zip(batch, images, strict=True):
        wanted = np.empty(spec.row_shape, spec.dtype)
        host(image, wanted)
        yield np.abs(row.astype(np.float64) - wanted.astype(np.float64)) * levels
