"""A detection transformer of digits: nine tenths of its products are MatMul.

It is none of the demo models. `benchmarks/transformers.py` judges INT8 on it.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from tools.demo_models.network import DigitDetector

DIM, HEADS, LAYERS, DECODERS = 192, 6, 4, 2
QUERIES = 100
STRIDE = 16
# Side of the box, as a share of the image, that a token begins with.
USUAL_SIDE = 0.15


@dataclass(frozen=True, slots=True)
class Found:
    """Logits [batch, rows, classes], and boxes cx cy w h [batch, rows, 4], 0 to 1 of the image."""

    logits: Tensor
    boxes: Tensor


class Attention(nn.Module):
    """Heads that look from some rows at others."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Mix the values by how their keys suit each query."""
        query, key, value = (
            one.unflatten(2, (HEADS, DIM // HEADS)).transpose(1, 2)
            for one in (self.query(queries), self.key(keys), self.value(values))
        )
        # In bfloat16 on a CPU, the gradients of torch's scaled_dot_product_attention take a third
        # of a step, and these half of that.
        weights = (query @ key.transpose(2, 3) * (DIM // HEADS) ** -0.5).softmax(3)
        return cast(Tensor, self.out((weights @ value).transpose(1, 2).flatten(2)))


class Mlp(nn.Sequential):
    """The part of a layer that sees one row at a time."""

    def __init__(self, inputs: int = DIM, inner: int = 4 * DIM, outputs: int = DIM) -> None:
        super().__init__(nn.Linear(inputs, inner), nn.GELU(), nn.Linear(inner, outputs))


class EncoderLayer(nn.Module):
    """Tokens look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, tokens: Tensor) -> Tensor:
        """Add what each sees."""
        seen = self.norms[0](tokens)
        tokens = tokens + self.attention(seen, seen, seen)
        return cast(Tensor, tokens + self.mlp(self.norms[1](tokens)))


class DecoderLayer(nn.Module):
    """Queries look at each other, and at the tokens; their boxes are moved."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))
        self.among, self.at_tokens, self.mlp = Attention(), Attention(), Mlp()
        self.logits, self.move = nn.Linear(DIM, classes), Mlp(inner=DIM, outputs=4)
        _begin(self.logits, self.move)

    def forward(self, rows: Tensor, places: Tensor, tokens: Tensor, keys: Tensor) -> Tensor:
        """Add what each query sees."""
        seen = self.norms[0](rows)
        rows = rows + self.among(seen + places, seen + places, seen)
        rows = rows + self.at_tokens(self.norms[1](rows) + places, keys, tokens)
        return cast(Tensor, rows + self.mlp(self.norms[2](rows)))

    def answer(self, rows: Tensor, boxes: Tensor) -> Found:
        """Read classes and boxes off the rows."""
        seen = self.norms[3](rows)
        return Found(self.logits(seen), (self.move(seen) + _logit(boxes)).sigmoid())


class DigitTransformer(nn.Module):
    """Images in 0..1 to what every layer of the decoder finds, first what the tokens do.

    Its first layers are those of a finished detector, which are not trained on.
    """

    def __init__(self, detector: DigitDetector, classes: int = 10) -> None:
        super().__init__()
        body = detector.backbone
        self.body = nn.Sequential(body.early, body.fine, body.middle)
        self.enter = nn.Conv2d(64, DIM, 1)
        self.encoder = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.logits, self.boxes = nn.Linear(DIM, classes), Mlp(inner=DIM, outputs=4)
        _begin(self.logits, self.boxes)
        self.content, self.places = nn.Linear(DIM, DIM), Mlp(4, DIM)
        self.decoder = nn.ModuleList(DecoderLayer(classes) for _ in range(DECODERS))

    def forward(self, images: Tensor) -> list[Found]:
        """Return what is found, a `Found` of all tokens, and one of the queries for each layer."""
        features = self.enter(self.body(images))
        rows, columns = features.shape[2:]
        signs = _signs(rows, columns)
        tokens = features.flatten(2).transpose(1, 2) + signs
        for layer in self.encoder:
            tokens = layer(tokens)
        tokens = self.norm(tokens)
        every = Found(self.logits(tokens), (self.boxes(tokens) + _anchors(rows, columns)).sigmoid())
        best = every.logits.amax(2).topk(QUERIES, 1).indices[..., None]
        boxes = every.boxes.gather(1, best.expand(-1, -1, 4)).detach()
        queries = self.content(tokens.gather(1, best.expand(-1, -1, DIM)))
        found, keys = [every], tokens + signs
        for one in self.decoder:
            layer = cast(DecoderLayer, one)
            queries = layer(queries, self.places(boxes), tokens, keys)
            found.append(layer.answer(queries, boxes))
            boxes = found[-1].boxes.detach()
        return found


class Answered(nn.Module):
    """The outputs of RT-DETR without its post-processing: `pred_logits` and `pred_boxes`."""

    outputs = ("pred_logits", "pred_boxes")

    def __init__(self, model: DigitTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the last layer finds."""
        last = self.model(images)[-1]
        return last.logits, last.boxes


def _begin(logits: nn.Linear, boxes: Mlp) -> None:
    """Nearly all is background, and every box is where it was."""
    nn.init.constant_(logits.bias, -4.6)
    last = cast(nn.Linear, boxes[2])
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)


def _logit(shares: Tensor) -> Tensor:
    shares = shares.clamp(1e-4, 1 - 1e-4)
    return (shares / (1 - shares)).log()


def centres(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return x and y of every token's middle, in tokens, row by row."""
    y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
    return x.flatten(), y.flatten()


def _anchors(rows: int, columns: int) -> Tensor:
    x, y = centres(rows, columns)
    side = torch.full_like(x, USUAL_SIDE)
    return _logit(torch.stack((x / columns, y / rows, side, side), 1))


def _signs(rows: int, columns: int) -> Tensor:
    """Sines that tell a token's place: DIM / 4 frequencies for each direction."""
    steps = torch.exp(torch.arange(DIM // 4) * (-math.log(1000.0) / (DIM // 4)))
    waves = [place[:, None] * steps for place in centres(rows, columns)]
    return torch.cat([turn(wave) for wave in waves for turn in (torch.sin, torch.cos)], 1)
