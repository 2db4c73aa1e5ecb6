"""The classifier: the detector without its boxes, on crops of one digit each."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.demo_models.network import DigitDetector
from tools.demo_models.pool import SIDE, Batch

CROP = 64
# Share of a digit's longer side that a crop shows around it, on each side.
MARGINS = (0.02, 0.35)


class DigitClassifier(nn.Module):
    """Crops in 0..1 to logits of ten classes: the largest of each over all points."""

    def __init__(self, detector: DigitDetector) -> None:
        super().__init__()
        self.detector = detector.requires_grad_(True)

    def forward(self, crops: Tensor) -> Tensor:
        """Classify crops [batch, 3, height, width]."""
        return self.detector(crops).logits.amax(2)


def classification_loss(model: DigitClassifier, images: Tensor, batch: Batch) -> Tensor:
    """Cross entropy over all digits of a batch of scenes, each cut out at random."""
    owners, digits = (batch.labels >= 0).nonzero(as_tuple=True)
    crops = cut(images[owners], batch.boxes[owners, digits])
    labels = batch.labels[owners, digits]
    return functional.cross_entropy(model(crops), labels, label_smoothing=0.05)


def cut(images: Tensor, boxes: Tensor) -> Tensor:
    """Cut a square around each box, at random a little off; beyond the edge, the edge goes on."""
    low, high = boxes.chunk(2, 1)
    side = (high - low).amax(1, keepdim=True)
    margin = torch.empty_like(side).uniform_(*MARGINS)
    half = side * (0.5 + margin)
    off = torch.empty_like(low).uniform_(-1, 1) * side * margin * 0.7
    middle = (low + high) / 2 + off
    theta = torch.zeros(len(boxes), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = half[:, 0] * 2 / SIDE
    theta[:, :, 2] = middle * 2 / SIDE - 1
    grid = functional.affine_grid(theta, [len(boxes), 3, CROP, CROP], align_corners=False)
    crops = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return crops.to(memory_format=torch.channels_last)
