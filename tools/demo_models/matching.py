"""Matches queries to digits one to one, as DETR does, and weighs their errors."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional

from tools.demo_models.loss import assign, complete_iou
from tools.demo_models.pool import SIDE, Batch
from tools.demo_models.transformer import STRIDE, Found, centres

SIDE_GAIN, OVERLAP_GAIN = 5.0, 2.0


def matching_loss(found: list[Found], batch: Batch) -> Tensor:
    """Weigh what all tokens find, of which several may answer for a digit, and what queries do."""
    every, *layers = found
    return _dense_loss(every, batch) + torch.stack([_loss(one, batch) for one in layers]).sum()


def _loss(found: Found, batch: Batch) -> Tensor:
    true = _shares(batch.boxes)
    scores = torch.zeros_like(found.logits)
    own, wanted = [], []
    for image, labels in enumerate(batch.labels):
        real = (labels >= 0).nonzero()[:, 0]
        rows, digits = _match(found, image, labels[real], true[image, real])
        own.append(found.boxes[image, rows])
        wanted.append(true[image, real][digits])
        with torch.no_grad():
            overlap = complete_iou(_corners(own[-1]), _corners(wanted[-1])).clamp(0.05, 1)
        scores[image, rows, labels[real][digits]] = overlap
    boxes, targets = torch.cat(own), torch.cat(wanted)
    errors = SIDE_GAIN * (boxes - targets).abs().sum()
    errors = errors + OVERLAP_GAIN * (1 - complete_iou(_corners(boxes), _corners(targets))).sum()
    return (_class_errors(found.logits, scores) + errors) / max(len(boxes), 1)


def _dense_loss(found: Found, batch: Batch) -> Tensor:
    points = torch.stack(centres(SIDE // STRIDE, SIDE // STRIDE)) * STRIDE
    boxes = _corners(found.boxes) * SIDE
    with torch.no_grad():
        chances = found.logits.sigmoid()
        targets = assign(boxes, chances, batch.boxes, batch.labels, points)
    weights = targets.scores.amax(2)
    images, at = weights.nonzero(as_tuple=True)
    own, wanted = boxes[images, at], targets.boxes[images, at]
    apart = SIDE_GAIN * (own - wanted).abs().sum(1) / SIDE
    errors = OVERLAP_GAIN * (1 - complete_iou(own, wanted)) + apart
    total = _class_errors(found.logits, targets.scores) + (errors * weights[images, at]).sum()
    return total / targets.scores.sum().clamp(min=1.0)


def _class_errors(logits: Tensor, scores: Tensor) -> Tensor:
    """Cross entropy; background counts by how sure it is wrong (varifocal)."""
    errors = functional.binary_cross_entropy_with_logits(logits, scores, reduction="none")
    with torch.no_grad():
        weights = torch.where(scores > 0, 1.0, 0.75 * logits.sigmoid() ** 2)
    return (errors * weights).sum()


def _match(found: Found, image: int, labels: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows and the digits that belong together at the least cost."""
    with torch.no_grad():
        sure = found.logits[image].sigmoid()[:, labels]
        own = found.boxes[image]
        apart = torch.cdist(own, boxes, p=1)
        many = own.repeat_interleave(len(boxes), 0), boxes.repeat(len(own), 1)
        overlap = complete_iou(*map(_corners, many)).view(len(own), -1)
        cost = -2 * sure + SIDE_GAIN * apart - OVERLAP_GAIN * overlap
    rows, digits = linear_sum_assignment(cost.numpy())
    return torch.from_numpy(rows), torch.from_numpy(digits)


def _corners(boxes: Tensor) -> Tensor:
    middle, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((middle - half, middle + half), -1)


def _shares(corners: Tensor) -> Tensor:
    low, high = corners[..., :2] / SIDE, corners[..., 2:] / SIDE
    return torch.cat(((low + high) / 2, high - low), -1)
