"""The tasks: what each adds to the detector, what it gets wrong, and what it answers."""

import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.demo_models.loss import Chosen, box_errors
from tools.demo_models.network import (
    BINS,
    WIDTH,
    Branches,
    Conv,
    DigitDetector,
    Seen,
    corners,
    distances,
    doubled,
)
from tools.demo_models.pool import Batch
from tools.demo_models.scenes import CLASS_NAMES, KEYPOINTS, POINTS
from tools.demo_models.weights import fold

PROTOTYPES = 8
ANGLE_GAIN = 8.0
# No digit is turned by more.
LARGEST_ANGLE = math.pi / 4


class Detect(nn.Module):
    """Boxes alone: the detector itself."""

    outputs: ClassVar[tuple[str, ...]] = ("output0",)
    metadata: ClassVar[dict[str, str]] = {}
    # Points to learn from in a step: all, unless that takes too long.
    most: ClassVar[int] = 10_000

    def begin(self, detector: DigitDetector) -> None:
        """Start from a finished detector."""

    def forward(self, seen: Seen) -> tuple[Tensor, ...]:
        """Compute what the task adds, for every point."""
        return ()

    def errors(self, seen: Seen, raw: tuple[Tensor, ...], chosen: Chosen, batch: Batch) -> Tensor:
        """Weigh what is wrong with it at the points that were chosen."""
        raise NotImplementedError("a detector has a loss of its own")

    def loss(self, seen: Seen, chosen: Chosen, batch: Batch) -> Tensor:
        """Mean of the errors, weighted as the points are."""
        chosen = chosen.some(self.most)
        errors = self.errors(seen, self(seen), chosen, batch)
        return (errors * chosen.weights).sum() / chosen.weights.sum().clamp(min=1.0)

    def decode(
        self, seen: Seen, raw: tuple[Tensor, ...], points: Tensor, strides: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the outputs of the exported file, as YOLOv8's exporter has them."""
        return (_table(seen, points, strides),)


class Segment(Detect):
    """Masks, as sums of prototypes at half the input's size."""

    outputs: ClassVar[tuple[str, ...]] = ("output0", "output1")
    most: ClassVar[int] = 48

    def __init__(self) -> None:
        super().__init__()
        self.weights = Branches(PROTOTYPES)
        self.fine = Conv(WIDTH, 24, kernel=1)
        self.at_quarter = Conv(24 + 32, 24)
        self.at_half = Conv(24 + 16, 16)
        self.last = nn.Conv2d(16, PROTOTYPES, 1)

    def forward(self, seen: Seen) -> tuple[Tensor, ...]:
        """Compute the weights of each point, and the prototypes."""
        half, quarter = seen.maps[:2]
        fine = self.fine(seen.levels[0])
        mixed = self.at_quarter(torch.cat((doubled(fine), quarter), 1))
        mixed = self.at_half(torch.cat((doubled(mixed), half), 1))
        return self.weights(seen.levels), self.last(mixed)

    def errors(self, seen: Seen, raw: tuple[Tensor, ...], chosen: Chosen, batch: Batch) -> Tensor:
        """Cross entropy of the mask within the box of the digit, mean over its pixels."""
        weights, prototypes = raw
        own = chosen.of(weights)
        found = torch.einsum("kp,kphw->khw", own, prototypes[chosen.images])
        ink = batch.owners[chosen.images] == (chosen.digits + 1)[:, None, None]
        true = functional.avg_pool2d(ink.float()[:, None], 2)[:, 0]
        errors = functional.binary_cross_entropy_with_logits(found, true, reduction="none")
        x = torch.arange(found.shape[2]) * 2.0 + 1.0
        x1, y1, x2, y2 = chosen.boxes.T[:, :, None]
        across, down = (x > x1 - 2) & (x < x2 + 2), (x > y1 - 2) & (x < y2 + 2)
        inside = down[:, :, None] & across[:, None, :]
        return (errors * inside).sum((1, 2)) / inside.sum((1, 2)).clamp(min=1)

    def decode(
        self, seen: Seen, raw: tuple[Tensor, ...], points: Tensor, strides: Tensor
    ) -> tuple[Tensor, ...]:
        """Return boxes, scores and weights; and the prototypes."""
        weights, prototypes = raw
        return torch.cat((_table(seen, points, strides), weights), 1), prototypes


class Pose(Detect):
    """The centre and the corners of a digit, as keypoints."""

    metadata: ClassVar[dict[str, str]] = {
        "kpt_shape": str([len(KEYPOINTS), 2]),
        "kpt_names": str({number: list(KEYPOINTS) for number in range(len(CLASS_NAMES))}),
    }

    def __init__(self) -> None:
        super().__init__()
        self.offsets = Branches(2 * len(KEYPOINTS))
        usual = torch.from_numpy(POINTS / 2).reshape(-1, 1)
        self.register_buffer("usual", usual, persistent=False)

    def forward(self, seen: Seen) -> tuple[Tensor, ...]:
        """Compute how far each keypoint is from its place in the upright box, in sizes of it."""
        return (self.offsets(seen.levels),)

    def errors(self, seen: Seen, raw: tuple[Tensor, ...], chosen: Chosen, batch: Batch) -> Tensor:
        """Distances of the keypoints, over the root of the digit's area."""
        low, high = corners(chosen.of(seen.bins).T[None], chosen.centres.T, chosen.strides).chunk(
            2, 1
        )
        found = self._places(low, high, chosen.of(raw[0]).T[None])[0].T.unflatten(1, (-1, 2))
        centre, size, angle = batch.rotated[chosen.images, chosen.digits].split((2, 2, 1), 1)
        own = size[:, None] / 2 * torch.from_numpy(POINTS)
        true = centre[:, None] + _turned(own, angle[:, None, 0])
        side = size.prod(1).sqrt()[:, None, None]
        errors = functional.smooth_l1_loss(found / side, true / side, reduction="none", beta=0.05)
        return errors.mean((1, 2))

    def decode(
        self, seen: Seen, raw: tuple[Tensor, ...], points: Tensor, strides: Tensor
    ) -> tuple[Tensor, ...]:
        """Return boxes, scores, and x y of each keypoint."""
        low, high = corners(seen.bins, points, strides).chunk(2, 1)
        places = self._places(low, high, raw[0])
        return (torch.cat((_table(seen, points, strides), places), 1),)

    def _places(self, low: Tensor, high: Tensor, offsets: Tensor) -> Tensor:
        """Return x y of each keypoint, [batch, 2 x keypoints, points], of corners of boxes."""
        count = len(KEYPOINTS)
        middle, size = ((low + high) / 2).repeat(1, count, 1), (high - low).repeat(1, count, 1)
        return middle + (cast(Tensor, self.usual) + offsets) * size


class Obb(Detect):
    """Rotated boxes: a turned one is upright in its own frame, where its sides are learnt."""

    def __init__(self) -> None:
        super().__init__()
        # They begin as the sides of the detector, whose batch norms are folded already.
        self.sides = fold(Branches(4 * BINS))
        self.angles = Branches(1)

    def begin(self, detector: DigitDetector) -> None:
        """Take over the sides of upright boxes."""
        self.sides.load_state_dict(detector.distances.state_dict())

    def forward(self, seen: Seen) -> tuple[Tensor, ...]:
        """Compute logits of the distances to the sides, and angles."""
        angles = (self.angles(seen.levels).sigmoid() * 2 - 1) * LARGEST_ANGLE
        return self.sides(seen.levels), angles

    def errors(self, seen: Seen, raw: tuple[Tensor, ...], chosen: Chosen, batch: Batch) -> Tensor:
        """Errors of the box in the digit's frame, and of the angle."""
        bins, angles = (chosen.of(columns) for columns in raw)
        centre, size, angle = batch.rotated[chosen.images, chosen.digits].split((2, 2, 1), 1)
        from_centre = _turned(chosen.centres - centre, -angle[:, 0])
        box = torch.cat((-size / 2, size / 2), 1)
        off = functional.smooth_l1_loss(angles, angle, reduction="none", beta=0.05)[:, 0]
        return box_errors(bins, from_centre, chosen.strides, box) + ANGLE_GAIN * off

    def decode(
        self, seen: Seen, raw: tuple[Tensor, ...], points: Tensor, strides: Tensor
    ) -> tuple[Tensor, ...]:
        """Return boxes in their own frames, scores and angles."""
        bins, angles = raw
        low, high = distances(bins, strides).chunk(2, 1)
        x, y = ((high - low) / 2).chunk(2, 1)
        cos, sin = angles.cos(), angles.sin()
        centre = points + torch.cat((x * cos - y * sin, x * sin + y * cos), 1)
        return (torch.cat((centre, low + high, seen.logits.sigmoid(), angles), 1),)


TASKS: dict[str, type[Detect]] = {
    "detect": Detect,
    "segment": Segment,
    "pose": Pose,
    "obb": Obb,
}


def _table(seen: Seen, points: Tensor, strides: Tensor) -> Tensor:
    """Return centre and size in input pixels, then scores: [batch, 4 + classes, points]."""
    low, high = corners(seen.bins, points, strides).chunk(2, 1)
    return torch.cat(((low + high) / 2, high - low, seen.logits.sigmoid()), 1)


def _turned(vectors: Tensor, angles: Tensor) -> Tensor:
    """Turn vectors [..., 2] clockwise."""
    x, y = vectors.unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((x * cos - y * sin, x * sin + y * cos), -1)
