"""Assigns points to digits, and weighs their errors."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tools.demo_detector.network import BINS, DigitDetector

# Points that may answer for one digit (task-aligned assignment, TOOD).
CANDIDATES = 8
SCORE_POWER, OVERLAP_POWER = 0.5, 4.0
# Half the side of the square around a centre that counts as inside however thin the digit is.
REACH = 7.0
BOX_GAIN, BIN_GAIN = 4.0, 1.0


@dataclass(frozen=True, slots=True)
class Targets:
    """For every point: its box, and how sure it should be of each class."""

    boxes: Tensor
    scores: Tensor


class DetectionLoss:
    """Assigns digits to points, then weighs class, overlap and distance errors."""

    def __init__(self, model: DigitDetector, points: Tensor, strides: Tensor) -> None:
        self.model, self.points, self.strides = model, points, strides

    def __call__(self, bins: Tensor, logits: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a batch; labels below zero mark empty rows of boxes."""
        corners = self.model.corners(bins, self.points, self.strides).transpose(1, 2)
        logits = logits.transpose(1, 2)
        with torch.no_grad():
            targets = assign(corners, logits.sigmoid(), boxes, labels, self.points)
        total = targets.scores.sum().clamp(min=1.0)
        kinds = functional.binary_cross_entropy_with_logits(logits, targets.scores, reduction="sum")
        weight = targets.scores.amax(2)
        chosen = weight > 0
        overlap = complete_iou(corners[chosen], targets.boxes[chosen])
        far = self._bin_errors(bins.transpose(1, 2)[chosen], targets.boxes[chosen], chosen)
        errors = BOX_GAIN * (1.0 - overlap) + BIN_GAIN * far
        return (kinds + (errors * weight[chosen]).sum()) / total

    def _bin_errors(self, bins: Tensor, boxes: Tensor, chosen: Tensor) -> Tensor:
        """Cross entropy against the two bins on either side of the true distance."""
        index = chosen.nonzero()[:, 1]
        centre, stride = self.points.T[index], self.strides[index, None]
        sides = torch.cat((centre - boxes[:, :2], boxes[:, 2:] - centre), 1) / stride
        sides = sides.clamp(0.0, BINS - 1.01)
        below = sides.floor()
        upper = sides - below
        logs = bins.reshape(-1, 4, BINS).log_softmax(2)
        at = below.long().unsqueeze(2)
        near, next_ = logs.gather(2, at).squeeze(2), logs.gather(2, at + 1).squeeze(2)
        errors: Tensor = -(near * (1.0 - upper) + next_ * upper)
        return errors.mean(1)


def assign(
    corners: Tensor, scores: Tensor, boxes: Tensor, labels: Tensor, points: Tensor
) -> Targets:
    """Give each digit the points whose class and box already suit it best.

    Args:
        corners: Predicted boxes [batch, points, 4].
        scores: Predicted class scores [batch, points, classes].
        boxes: True boxes [batch, digits, 4].
        labels: True classes [batch, digits], below zero where there is no digit.
        points: Centres [2, points].
    """
    real = labels >= 0
    near = _near(boxes, points) & real[..., None]
    overlap = plain_iou(boxes[:, :, None], corners[:, None]).clamp(min=0.0)
    kinds = labels.clamp(min=0)
    index = kinds[:, None].expand(-1, scores.shape[1], -1)
    suit = scores.gather(2, index).transpose(1, 2) ** SCORE_POWER * overlap**OVERLAP_POWER
    # A tiny floor keeps candidates apart from points outside while nothing overlaps yet.
    suit = (suit + 1e-9) * near
    best = suit.topk(CANDIDATES, 2)
    taken = torch.zeros_like(suit).scatter_(2, best.indices, 1.0) * (suit > 0)
    # A point between two digits answers for the one it overlaps more.
    owner = (taken * (overlap + 1e-6)).argmax(1)
    only = functional.one_hot(owner, boxes.shape[1]).transpose(1, 2)
    taken = taken * only
    suit = suit * taken
    peak = suit.amax(2, keepdim=True).clamp(min=1e-9)
    reached = (overlap * taken).amax(2, keepdim=True).clamp(min=0.05)
    confidence = (suit / peak * reached).amax(1)
    own_kind = kinds.gather(1, owner)
    wanted = functional.one_hot(own_kind, scores.shape[2]) * confidence[..., None]
    own_box = boxes.gather(1, owner[..., None].expand(-1, -1, 4))
    return Targets(own_box, wanted)


def plain_iou(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of corner boxes, broadcast."""
    low, high = (
        torch.maximum(one[..., :2], other[..., :2]),
        torch.minimum(one[..., 2:], other[..., 2:]),
    )
    shared = (high - low).clamp(min=0).prod(-1)
    return shared / (_area(one) + _area(other) - shared + 1e-7)


def complete_iou(one: Tensor, other: Tensor) -> Tensor:
    """IoU less what centres and aspect ratios are apart (CIoU), of paired boxes."""
    hull = torch.maximum(one[:, 2:], other[:, 2:]) - torch.minimum(one[:, :2], other[:, :2])
    apart = (one[:, :2] + one[:, 2:] - other[:, :2] - other[:, 2:]) / 2
    distance = apart.square().sum(1) / (hull.square().sum(1) + 1e-7)
    tilt = torch.atan(_aspect(one)) - torch.atan(_aspect(other))
    shape = tilt.square() * (4 / torch.pi**2)
    iou = plain_iou(one, other)
    with torch.no_grad():
        share = shape / (1.0 - iou + shape + 1e-7)
    return iou - distance - share * shape


def _near(boxes: Tensor, points: Tensor) -> Tensor:
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2
    half = ((boxes[..., 2:] - boxes[..., :2]) / 2).clamp(min=REACH)
    away = (points.T[None, None] - centre[:, :, None]).abs()
    return (away < half[:, :, None]).all(-1)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def _aspect(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]) / (boxes[:, 3] - boxes[:, 1]).clamp(min=1e-3)
