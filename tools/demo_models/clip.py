"""Train a tiny CLIP on coloured digits and export it: `python -m tools.demo_models.clip --help`."""

import argparse
import math
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxslim
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional

from tools.demo_models import network as neck
from tools.demo_models.captions import (
    HELDOUT,
    LENGTH,
    PAIRS,
    SIDE,
    TEMPLATES,
    VOCABULARY,
    caption,
    compose,
)
from tools.demo_models.weights import halve, trained_detector

WIDTH = 64
BATCH = 64
RATE = 3e-3
# Pixels of 1024 whose colours are looked at.
NEAR = 256
# CLIP's own.
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).reshape(3, 1, 1)
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).reshape(3, 1, 1)
TRAINED = tuple(pair for pair in PAIRS if pair not in HELDOUT)


class TinyClip(nn.Module):
    """An image tower that begins with the detector, and a text tower that adds up its words.

    The detector, which is not trained, says which digit there is and where. What is trained looks
    at the pixels there for the colour.
    """

    def __init__(self, detector: neck.DigitDetector) -> None:
        super().__init__()
        self.detector = detector
        self.digits = nn.Sequential(
            nn.Linear(10 + neck.WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH, bias=False)
        )
        self.pixels = nn.Sequential(nn.Linear(3 + 16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.ink = nn.Linear(32, 1)
        self.colours = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, WIDTH))
        self.words = nn.Embedding(len(VOCABULARY), WIDTH)
        self.scale = nn.Parameter(torch.tensor(math.log(20.0)))

    def look(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the detector says of images [n, 3, 64, 64], 0 to 1.

        These are logits of digits and features where they are [n, 58], how likely the digit is at
        the likeliest pixels [n, NEAR, 1], and their colours and edges [n, NEAR, 19].
        """
        seen = self.detector(pixels)
        cells, left = [], seen.logits.amax(1, keepdim=True)
        for stride in neck.STRIDES:
            side = SIDE // stride
            level, left = left[:, :, : side * side], left[:, :, side * side :]
            cells.append(functional.interpolate(level.reshape(-1, 1, side, side), size=(32, 32)))
        places = torch.stack(cells).amax(0)
        share = functional.avg_pool2d(places, 4).flatten(2).softmax(2)
        features = (seen.levels[0].flatten(2) * share).sum(2)
        logits, chosen = places.flatten(1).topk(NEAR, 1)
        near = torch.cat((functional.avg_pool2d(pixels, 2), seen.maps[0]), 1).flatten(2)
        near = near.transpose(1, 2).gather(1, chosen[:, :, None].expand(-1, -1, 19))
        return torch.cat((seen.logits.amax(2), features), 1), logits[:, :, None], near

    def judge(self, digits: Tensor, places: Tensor, near: Tensor) -> Tensor:
        """Return the vectors of images that were looked at."""
        found = self.pixels(near)
        share = (self.ink(found) + places).softmax(1)
        vectors = self.digits(digits) + self.colours((found * share).sum(1))
        return functional.normalize(vectors, dim=1)

    def see(self, pixels: Tensor) -> Tensor:
        """Return vectors of images as CLIP takes them."""
        return self.judge(*self.look(pixels * STD + MEAN))

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return vectors of texts, ids and mask [n, length]."""
        summed = (self.words(ids) * mask[:, :, None].float()).sum(1)
        return functional.normalize(summed, dim=1)

    def forward(self, ids: Tensor, pixels: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return what exporters of CLIP do."""
        read, seen = self.read(ids, mask), self.see(pixels)
        logits = read @ seen.T * self.scale.exp()
        return logits.T, logits, read, seen


def tokens(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Return ids and mask of texts."""
    ids = torch.zeros(len(texts), LENGTH, dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        words = text.split()
        row[: len(words)] = torch.tensor([VOCABULARY.index(word) for word in words])
    return ids, (ids > 0).long()


def images(seeds: range, heldout: bool) -> tuple[Tensor, Tensor]:
    """Compose images, and return them with the places of their pairs."""
    split, pairs = ("heldout", HELDOUT) if heldout else ("train", TRAINED)
    made = [compose(seed, split, pairs) for seed in seeds]  # type: ignore[arg-type]
    pixels = torch.from_numpy(np.stack([each for each, _ in made])).permute(0, 3, 1, 2)
    return pixels, torch.tensor([place for _, place in made])


def train(model: TinyClip, count: int, steps: int) -> None:
    """Train: of all captions, that of an image is to be the likeliest."""
    pixels, places = images(range(count), heldout=False)
    with torch.no_grad():
        parts = [model.look(part.float() / 255) for part in pixels.split(100)]
    looked = [torch.cat(each) for each in zip(*parts, strict=True)]
    learnt = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=RATE, weight_decay=0.02)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2)
        rows = torch.randint(0, count, (BATCH,))
        template = TEMPLATES[step % len(TEMPLATES)]
        read = model.read(*tokens([caption(pair, template) for pair in TRAINED]))
        digits, likely, near = (each[rows] for each in looked)
        digits = functional.dropout(digits, 0.2)
        seen = model.judge(digits, likely, near)
        logits = seen @ read.T * model.scale.exp().clamp(max=100)
        loss = functional.cross_entropy(logits, places[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step:5d}  loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def recall(model: TinyClip, count: int = 1000) -> float:
    """Return how often the caption of a held-out image is the likeliest of all captions."""
    model.eval()
    pixels, places = images(range(count), heldout=True)
    read = model.read(*tokens([caption(pair) for pair in (*HELDOUT, *TRAINED)]))
    looked = (model.look(part.float() / 255) for part in pixels.split(100))
    seen = torch.cat([model.judge(*each) for each in looked])
    best = (seen @ read.T).argmax(1)
    every = (*HELDOUT, *TRAINED)
    for name, at in (("colour", 0), ("digit", 1)):
        right = [every[b][at] == every[p][at] for b, p in zip(best, places, strict=True)]
        print(f"{name} right: {np.mean(right):.3f}")
    return float((best == places).float().mean())


def export(model: TinyClip, target: Path) -> None:
    """Write the ONNX file as exporters of CLIP do."""
    ids, mask = tokens([caption(pair) for pair in PAIRS[:2]])
    names = ["input_ids", "pixel_values", "attention_mask"]
    outputs = ["logits_per_image", "logits_per_text", "text_embeds", "image_embeds"]
    texts, pictures = {0: "texts"}, {0: "images"}
    axes = dict(
        zip(
            [*names, *outputs],
            [texts, pictures, texts, pictures, texts, texts, pictures],
            strict=True,
        )
    )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # The tracing exporter is on its way out; its successor needs one more package.
        warnings.simplefilter("ignore", DeprecationWarning)
        path = Path(folder) / "traced.onnx"
        torch.onnx.export(
            model.eval(),
            (ids, torch.zeros(2, 3, SIDE, SIDE), mask),
            path,
            input_names=names,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=19,
            dynamo=False,
        )
        traced = onnxslim.slim(onnx.load(path))
    del traced.graph.value_info[:]
    halve(traced)
    about = {
        "description": "Fovea demo model (embed): coloured digits and the words for them",
        "author": "Fovea",
        "license": "Apache-2.0",
    }
    onnx.helper.set_model_props(traced, about)
    onnx.checker.check_model(traced, full_check=True)
    onnx.save(traced, target)
    write_tokenizer(target.with_suffix(".json"))


def write_tokenizer(path: Path) -> None:
    """Write the tokenizer as Hugging Face's repositories have it."""
    words = models.WordLevel({word: at for at, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))


def main() -> None:
    """Read the command line, train, measure, export."""
    parser = argparse.ArgumentParser(description="Train a tiny CLIP on a CPU.")
    parser.add_argument(
        "target", type=Path, help="the ONNX file to write, and its tokenizer beside it"
    )
    parser.add_argument("detector", type=Path, help="ONNX file that it begins with")
    parser.add_argument("--images", type=int, default=2_500, help="training images to compose")
    parser.add_argument("--steps", type=int, default=3_000, help="batches to train on")
    options = parser.parse_args()
    torch.manual_seed(1)
    model = TinyClip(trained_detector(options.detector))
    train(model, options.images, options.steps)
    print(f"recall@1 of held-out captions: {recall(model):.3f}")
    export(model, options.target)


if __name__ == "__main__":
    main()
