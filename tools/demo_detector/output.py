"""The exported output: what YOLOv8 detectors give, so that their decoders read this one."""

from typing import cast

import torch
from torch import Tensor, nn

from tools.demo_detector.network import DigitDetector, grid


class Decoded(nn.Module):
    """Images to [batch, 4 + classes, points]: centre, size in input pixels, then scores."""

    def __init__(self, model: DigitDetector, side: int) -> None:
        super().__init__()
        self.model = model
        points, strides = grid(side, side)
        self.register_buffer("points", points)
        self.register_buffer("strides", strides)

    def forward(self, images: Tensor) -> Tensor:
        """Predict and decode."""
        bins, logits = self.model(images)
        points, strides = cast(Tensor, self.points), cast(Tensor, self.strides)
        corners = self.model.corners(bins, points, strides)
        low, high = corners.chunk(2, 1)
        return torch.cat(((low + high) / 2, high - low, logits.sigmoid()), 1)
