"""The detector: small, anchor-free, with a decoupled head and no objectness."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

STRIDES = (8, 16, 32)
# Distances to the four sides are distributions over this many steps of one stride.
BINS = 8
WIDTH = 48


class Conv(nn.Sequential):
    """Convolution, batch norm, SiLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.05),
            nn.SiLU(inplace=True),
        )


class SeparableConv(nn.Sequential):
    """Depthwise, then pointwise: a ninth of the weights of a full convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__(
            Conv(inputs, inputs, 3, stride, groups=inputs), Conv(inputs, outputs, kernel=1)
        )


class SplitStage(nn.Module):
    """Half of the channels pass untouched, half go through a residual pair; all are mixed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = Conv(inputs, outputs, kernel=1)
        self.pair = nn.Sequential(Conv(half, half), Conv(half, half))
        self.leave = Conv(outputs + half, outputs, kernel=1)

    def forward(self, features: Tensor) -> Tensor:
        """Transform without changing height or width."""
        kept, worked = self.enter(features).chunk(2, 1)
        return cast(Tensor, self.leave(torch.cat((kept, worked, worked + self.pair(worked)), 1)))


class WideView(nn.Module):
    """Repeated pooling: the coarsest level sees the whole image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = Conv(channels, channels // 2, kernel=1)
        self.leave = Conv(channels * 2, channels, kernel=1)

    def forward(self, features: Tensor) -> Tensor:
        """Mix what was seen at four widths of view."""
        views = [self.enter(features)]
        for _ in range(3):
            views.append(functional.max_pool2d(views[-1], 5, 1, 2))
        return cast(Tensor, self.leave(torch.cat(views, 1)))


class Backbone(nn.Module):
    """Features at strides 2, 4, 8, 16 and 32."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Sequential(Conv(3, 16, 3, 2), Conv(16, 32, 3, 2), SplitStage(32, 32))
        self.fine = nn.Sequential(Conv(32, 48, 3, 2), SplitStage(48, 48))
        self.middle = nn.Sequential(SeparableConv(48, 64, 2), SplitStage(64, 64))
        self.coarse = nn.Sequential(SeparableConv(64, 80, 2), SplitStage(80, 80), WideView(80))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images to features, finest first."""
        half = self.early[0](images)
        quarter = self.early[1:](half)
        fine = self.fine(quarter)
        middle = self.middle(fine)
        return [half, quarter, fine, middle, self.coarse(middle)]


class Neck(nn.Module):
    """Features of neighbouring strides, mixed from coarse to fine and back."""

    def __init__(self) -> None:
        super().__init__()
        self.middle_in = SplitStage(80 + 64, WIDTH)
        self.fine_out = SplitStage(WIDTH + 48, WIDTH)
        self.fine_down = SeparableConv(WIDTH, WIDTH, 2)
        self.middle_out = SplitStage(WIDTH * 2, WIDTH)
        self.middle_down = SeparableConv(WIDTH, WIDTH, 2)
        self.coarse_out = SplitStage(WIDTH + 80, WIDTH)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Mix the three coarsest levels into three levels of equal width."""
        fine, middle, coarse = features[-3:]
        middle = self.middle_in(torch.cat((doubled(coarse), middle), 1))
        fine = self.fine_out(torch.cat((doubled(middle), fine), 1))
        middle = self.middle_out(torch.cat((self.fine_down(fine), middle), 1))
        coarse = self.coarse_out(torch.cat((self.middle_down(middle), coarse), 1))
        return [fine, middle, coarse]


class Branch(nn.Sequential):
    """One task at one level."""

    def __init__(self, outputs: int) -> None:
        super().__init__(
            SeparableConv(WIDTH, WIDTH), SeparableConv(WIDTH, WIDTH), nn.Conv2d(WIDTH, outputs, 1)
        )


class Branches(nn.ModuleList):
    """A branch for each level."""

    def __init__(self, outputs: int, bias: float = 0.0) -> None:
        """Start with a bias, which alone decides before training."""
        super().__init__(Branch(outputs) for _ in STRIDES)
        for branch in self:
            nn.init.constant_(cast(Tensor, cast(Branch, branch)[2].bias), bias)

    def forward(self, levels: list[Tensor]) -> Tensor:
        """Levels to [batch, outputs, points]."""
        each = [branch(level) for branch, level in zip(self, levels, strict=True)]
        return torch.cat([one.flatten(2) for one in each], 2)


@dataclass(frozen=True, slots=True)
class Seen:
    """The detector's features and predictions, which the branches of other tasks take.

    Attributes:
        maps: of the backbone, finest first.
        levels: of the neck, finest first.
        bins: logits of the distances to the four sides, [batch, 4 * BINS, points].
        logits: of the classes, [batch, classes, points].
    """

    maps: list[Tensor]
    levels: list[Tensor]
    bins: Tensor
    logits: Tensor


class DigitDetector(nn.Module):
    """Images in 0..1 to distances and class logits for every point of three grids."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.backbone, self.neck = Backbone(), Neck()
        self.distances = Branches(4 * BINS)
        # Nearly every point is background: start by saying so.
        self.classes = Branches(classes, bias=-4.6)

    def forward(self, images: Tensor) -> Seen:
        """Return what is seen at every point."""
        maps = self.backbone(images)
        levels = self.neck(maps)
        return Seen(maps, levels, self.distances(levels), self.classes(levels))


def grid(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Centres [2, points] in input pixels, and the stride [points], of every prediction."""
    points, strides = [], []
    for stride in STRIDES:
        rows, columns = height // stride, width // stride
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        points.append((torch.stack((x, y)).flatten(1) + 0.5) * stride)
        strides.append(torch.full((rows * columns,), float(stride)))
    return torch.cat(points, 1), torch.cat(strides)


def distances(bins: Tensor, strides: Tensor) -> Tensor:
    """Bin logits to distances left, top, right, bottom in input pixels, as [batch, 4, points]."""
    chances = bins.reshape(-1, 4, BINS, strides.shape[0]).softmax(2)
    steps = torch.arange(BINS, dtype=bins.dtype).view(1, 1, BINS, 1)
    return (chances * steps).sum(2) * strides


def corners(bins: Tensor, points: Tensor, strides: Tensor) -> Tensor:
    """Bin logits to x1, y1, x2, y2 in input pixels, as [batch, 4, points]."""
    to_low, to_high = distances(bins, strides).chunk(2, 1)
    return torch.cat((points - to_low, points + to_high), 1)


def doubled(features: Tensor) -> Tensor:
    """Repeat every cell in both directions."""
    return functional.interpolate(features, scale_factor=2.0, mode="nearest")
