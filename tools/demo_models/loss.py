"""Assigns points to digits, and weighs their errors."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from tools.demo_models.network import BINS, Seen, corners
from tools.demo_models.pool import Batch

# Points that may answer for one digit (task-aligned assignment, TOOD).
CANDIDATES = 8
SCORE_POWER, OVERLAP_POWER = 0.5, 4.0
# Half the side of the square around a centre that counts as inside however thin the digit is.
REACH = 7.0
BOX_GAIN, BIN_GAIN = 4.0, 1.0


@dataclass(frozen=True, slots=True)
class Targets:
    """For every point: its digit, that one's box, and how sure it should be of each class."""

    owners: Tensor
    boxes: Tensor
    scores: Tensor


@dataclass(frozen=True, slots=True)
class Chosen:
    """Points that answer for a digit.

    Attributes:
        images: number of the image of each.
        points: number of the point among all of the grid.
        digits: number of the digit in its image.
        weights: of what each gets wrong.
        centres: x y of the point, input pixels.
        strides: of its level.
        boxes: of the digit, x1 y1 x2 y2.
    """

    images: Tensor
    points: Tensor
    digits: Tensor
    weights: Tensor
    centres: Tensor
    strides: Tensor
    boxes: Tensor

    def some(self, most: int) -> "Chosen":
        """Take so many of the points at random."""
        chosen = torch.randperm(len(self.points))[:most]
        return Chosen(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def of(self, columns: Tensor) -> Tensor:
        """Take the points from [batch, columns, all points]: [points, columns]."""
        return columns[self.images, :, self.points]


def choose(seen: Seen, batch: Batch, points: Tensor, strides: Tensor) -> tuple[Tensor, Chosen]:
    """Assign points to digits: the scores that all should have, and the points that answer."""
    with torch.no_grad():
        boxes = corners(seen.bins, points, strides).transpose(1, 2)
        sure = seen.logits.sigmoid().transpose(1, 2)
        targets = assign(boxes, sure, batch.boxes, batch.labels, points)
    weights = targets.scores.amax(2)
    images, at = weights.nonzero(as_tuple=True)
    chosen = Chosen(
        images=images,
        points=at,
        digits=targets.owners[images, at],
        weights=weights[images, at],
        centres=points.T[at],
        strides=strides[at],
        boxes=targets.boxes[images, at],
    )
    return targets.scores, chosen


def detection_loss(seen: Seen, batch: Batch, points: Tensor, strides: Tensor) -> Tensor:
    """Weigh class, overlap and distance errors of a batch."""
    scores, chosen = choose(seen, batch, points, strides)
    logits = seen.logits.transpose(1, 2)
    kinds = functional.binary_cross_entropy_with_logits(logits, scores, reduction="sum")
    errors = box_errors(chosen.of(seen.bins), chosen.centres, chosen.strides, chosen.boxes)
    return (kinds + (errors * chosen.weights).sum()) / scores.sum().clamp(min=1.0)


def box_errors(bins: Tensor, centres: Tensor, strides: Tensor, boxes: Tensor) -> Tensor:
    """Weigh how far boxes are off that points find, by overlap and by distance of the sides."""
    overlap = complete_iou(corners(bins.T[None], centres.T, strides)[0].T, boxes)
    sides = torch.cat((centres - boxes[:, :2], boxes[:, 2:] - centres), 1) / strides[:, None]
    return BOX_GAIN * (1.0 - overlap) + BIN_GAIN * _bin_errors(bins, sides)


def _bin_errors(bins: Tensor, sides: Tensor) -> Tensor:
    """Cross entropy against the two bins on either side of the true distances, in strides."""
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
    return Targets(owner, own_box, wanted)


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
