"""Runs images as they are decoded, beside batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_engines.backends.cuda.base import Device
from fovea_engines.backends.cuda.letterbox import LetterboxKernel
from fovea_engines.backends.tensorrt.images import most_image_bytes
from fovea_engines.backends.tensorrt.session import TensorRTSession
from fovea_engines.session import Array
from fovea_preprocess.errors import InferenceFailed
from fovea_preprocess.letterbox import LetterboxMap
from fovea_preprocess.placed import PlacedImage, Placer


class TensorRTImageSession(TensorRTSession):
    """An `ImageSession`: images are copied unchanged, and letterboxed on the GPU.

    Args:
        engine: as in `TensorRTSession`.
        device: as in `TensorRTSession`.
        trt: as in `TensorRTSession`.
        letterbox: on that device; closed with the session, and when its creation fails.
        options: as in `TensorRTSession`.

    Raises:
        InvalidModel: the kernel does not fit this engine.
    """

    def __init__(
        self, engine: Any, device: Device, trt: Any, letterbox: LetterboxKernel, **options: Any
    ) -> None:
        super().__init__(engine, device, trt, letterbox=letterbox, **options)
        self._place = Placer(letterbox.spec, most_image_bytes(letterbox.spec, self._largest))

    def place(self, pixels: NDArray[np.uint8]) -> tuple[PlacedImage, LetterboxMap]:
        """Prepare an image; see `ImageSession.place`."""
        return self._place(pixels)

    def infer_images(self, images: Sequence[PlacedImage]) -> dict[str, Array]:
        """Run one batch; see `ImageSession.infer_images`."""
        if not 1 <= len(images) <= self.max_batch:
            raise InferenceFailed(
                f"the batch has {len(images)} images; it must have from 1 to "
                f"{self.max_batch}: split it"
            )
        with self._slot() as slot:
            return self._in_parts(
                len(images),
                lambda part, outputs: slot.run_images(images[part], outputs),
            )
