"""Opens the two models of a comparison, and prepares the same images for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from fovea_engines.engine import open_built
from fovea_engines.evaluation.observe import recognise_graph
from fovea_engines.evaluation.samples import read_rows, sample_images
from fovea_engines.heads.metadata import image_size
from fovea_engines.heads.presets import default_preprocess
from fovea_engines.heads.signature import image_layout, image_sides
from fovea_engines.inspect.network import Network
from fovea_engines.inspect.onnx_network import OnnxNetwork
from fovea_engines.inspect.openvino_network import OpenVinoNetwork
from fovea_engines.onnx_graph.load import load
from fovea_engines.onnx_graph.normalise import open_size, pin_inputs
from fovea_engines.onnx_graph.tensors import graph_inputs, metadata_of
from fovea_engines.plain_engine import open_plain
from fovea_engines.repository.card import CARD_FILE, EngineCard, Precision
from fovea_engines.repository.repository import ModelRepository
from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel
from fovea_preprocess.spec import PixelType, PreprocessSpec
from fovea_preprocess.text import counted

# Largest number of images in a comparison. Few images are enough, because an incorrect layer is
# incorrect for every image. More images would be slow, because both models run without
# optimisation.
_MAX_IMAGES = 4
_DEFAULT_SIZE = (640, 640)
_RAW: dict[str, Any] = {"scale": 1.0, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}

Feed = dict[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class DiffModel:
    """A model of a comparison, before it is opened.

    Attributes:
        path: path of the ONNX or engine file.
        inputs: inputs of the model.
        metadata: key-value pairs that the exporter wrote into the model.
        family: function that returns the head family. It may run the model to recognise the family.
        preprocess: complete preprocessing of an engine's source model; None for an ONNX file.
        open: function that opens the model for inputs of the given shapes.
        front: True if the graph accepts uint8 images and normalises them itself.
        sized: True if the file accepts images of any size, and its input was fixed to one size.
    """

    path: Path
    inputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    family: Callable[[], str | None]
    preprocess: PreprocessSpec | None
    open: Callable[[Mapping[str, Array]], Network]
    front: bool = False
    sized: bool = False

    @property
    def image_sides(self) -> tuple[int, int] | None:
        """Height and width of the images in pixels; None without images or with several sizes."""
        sides = [image_sides(spec) for spec in self.inputs if _takes_images(spec)]
        return sides[0] if sides and -1 not in sides[0] else None


def find_models(path_a: Path, path_b: Path, head: str | None = None) -> tuple[DiffModel, DiffModel]:
    """Read the two models of a comparison.

    Each path is an .onnx file, the directory of a version, or the directory of a model.

    For a model's directory, the latest version is read. `head` is the head family of .onnx files,
    or None. The family of an engine is read from its card.
    """
    a, b = _find_model(path_a, head), _find_model(path_b, head)
    if a.sized != b.sized:  # a model that accepts any size gets the size of the other model
        a = _inspect_file(path_a, head, b.image_sides) if a.sized else a
        b = _inspect_file(path_b, head, a.image_sides) if b.sized else b
    return a, b


def _find_model(path: Path, head: str | None) -> DiffModel:
    return _inspect_folder(path.resolve()) if path.is_dir() else _inspect_file(path, head)


def _inspect_file(path: Path, head: str | None, size: tuple[int, int] | None = None) -> DiffModel:
    model = load(path).proto
    inputs = graph_inputs(model)
    sized = False
    if len(inputs) > 1 or any(len(spec.shape) == 3 for spec in inputs):
        with suppress(UnsupportedModel, InvalidOption):
            # Fix the inputs in the same way as the build of an engine.
            is_open = open_size(model) is not None
            pin_inputs(model, size)
            sized = is_open

    @cache
    def family() -> str | None:
        return recognise_graph(model, head)[0].family

    if head is not None:
        family()  # this raises an error if the family does not fit
    return DiffModel(
        path=path,
        inputs=graph_inputs(model),
        metadata=metadata_of(model),
        family=family,
        preprocess=None,
        open=partial(OnnxNetwork, model),
        sized=sized,
    )


def _inspect_folder(folder: Path) -> DiffModel:
    if not any((folder / file).is_file() for file in (CARD_FILE, *_NETWORKS)):
        folder = ModelRepository(folder.parent).folder(folder.name)
    # Open the engine once, to verify its files and to initialise the runtime.
    if (folder / CARD_FILE).is_file():
        card = EngineCard.read(folder / CARD_FILE)
        open_built(folder, card).close()
    else:
        card, session = open_plain(folder)
        session.close()
    path = folder / next(iter(card.files))
    if path.name not in _NETWORKS:
        raise UnsupportedModel(
            f"{path} does not list its layers: compare the ONNX file that it was built from"
        )
    return DiffModel(
        path=path,
        inputs=card.inputs,
        metadata=card.metadata,
        family=lambda: card.family,
        preprocess=card.source_preprocess or card.preprocess,
        front=card.source_preprocess is not None,
        open=partial(_NETWORKS[path.name], path, card.precision),
    )


_NETWORKS: Mapping[str, Callable[[Path, Precision, Mapping[str, Array]], Network]] = {
    "model.onnx": lambda path, _, feed: OnnxNetwork(load(path).proto, feed),
    "model.xml": OpenVinoNetwork,
}


@dataclass(frozen=True, slots=True, eq=False)
class Feeds:
    """The inputs for both models.

    Attributes:
        names: names of the images or of the random inputs.
        a: for each name, the input arrays of the first model.
        b: for each name, the input arrays of the second model.
    """

    names: tuple[str, ...]
    a: list[Feed]
    b: list[Feed]


def make_feeds(a: DiffModel, b: DiffModel, images: Path | None) -> Feeds:
    """Create the inputs for both models from images.

    `images` is a directory; None means the images that ship with Fovea.

    Both models get the same images in their own layout and element type. The preprocessing comes
    from the card of a model, the first model's card first. Without a card, it comes from the head
    family of the first model. Inputs other than images get random numbers, which are the same in
    every run.
    """
    samples = [name for name, _ in sample_images(images, _MAX_IMAGES)]
    pairs = _pair_inputs(a, b)
    image_inputs = next((pair for pair in pairs if all(map(_takes_images, pair))), None)
    named = [name if image_inputs else f"random numbers {i}" for i, name in enumerate(samples, 1)]
    feeds = Feeds(tuple(named), [{} for _ in samples], [{} for _ in samples])
    for one, other in pairs:
        if (one, other) == image_inputs:
            spec, batch = _preprocess(a, b, one, other)
            rows, others = (
                [np.repeat(row, batch, axis=0) for _, row in read_rows(each, images, _MAX_IMAGES)]
                for each in (_fit_to_input(spec, a, one), _fit_to_input(spec, b, other))
            )
        else:
            rows = others = _random(one, other, len(samples))
        for side, name, arrays in ((feeds.a, one, rows), (feeds.b, other, others)):
            for feed, array in zip(side, arrays, strict=True):
                feed[name.name] = array.astype(name.numpy_dtype, copy=False)
    return feeds


def _pair_inputs(a: DiffModel, b: DiffModel) -> list[tuple[TensorSpec, TensorSpec]]:
    if len(a.inputs) != len(b.inputs):
        raise InvalidOption(
            f"{a.path} has {counted(len(a.inputs), 'input')}, but {b.path} has {len(b.inputs)}: "
            "give two exports of the same model"
        )
    named = {spec.name: spec for spec in b.inputs}
    if all(spec.name in named for spec in a.inputs):
        return [(spec, named[spec.name]) for spec in a.inputs]
    return list(zip(a.inputs, b.inputs, strict=True))


def _takes_images(spec: TensorSpec) -> bool:
    return image_layout(spec) is not None and spec.dtype in get_args(PixelType)


def _preprocess(
    a: DiffModel, b: DiffModel, one: TensorSpec, other: TensorSpec
) -> tuple[PreprocessSpec, int]:
    """Return the preprocessing for a size that both models accept, and the batch size for both."""
    size = image_size(a.metadata) or image_size(b.metadata) or _DEFAULT_SIZE
    batch = _common(one.shape[0], other.shape[0], 1)
    height, width = map(_common, image_sides(one), image_sides(other), size)
    known = a.preprocess or b.preprocess
    if known is None:
        row = TensorSpec(one.name, "float32", (batch, 3, height, width))
        known = default_preprocess(a.family(), [row], {})
    return replace(known, height=height, width=width), batch


def _common(a: int, b: int, default: int) -> int:
    """Return a length of a dimension that both models accept.

    `a` and `b` are the lengths in the models; -1 means that a model accepts any length.
    """
    fixed = {a, b} - {-1}
    if len(fixed) > 1:
        raise InvalidOption(
            f"a dimension of an input is {a} in the first model, but {b} in the second: export "
            "both with the same image size and batch size"
        )
    return fixed.pop() if fixed else default


def _fit_to_input(spec: PreprocessSpec, model: DiffModel, taken: TensorSpec) -> PreprocessSpec:
    if model.front:
        return spec.bare
    layout = image_layout(taken) or "NCHW"
    dtype = cast(PixelType, taken.dtype)
    raw = {} if dtype.startswith("float") else _RAW
    return replace(spec, layout=layout, dtype=dtype, **raw)


def _random(one: TensorSpec, other: TensorSpec, count: int) -> list[Array]:
    if len(one.shape) != len(other.shape):
        raise InvalidOption(
            f"input {one.name} has {counted(len(one.shape), 'dimension')} in the first model, but "
            f"{len(other.shape)} in the second: export both in the same way"
        )
    batch, *row = (_common(*lengths, -1) for lengths in zip(one.shape, other.shape, strict=True))
    if -1 in row:
        raise UnsupportedModel(
            f"input {one.name} is not an image, and its size is dynamic: export the model with a "
            "fixed size"
        )
    shape = (abs(batch), *row)
    random = np.random.default_rng(0)
    if one.numpy_dtype.kind == "f":
        return [random.standard_normal(shape) for _ in range(count)]
    return [random.integers(0, 2, shape) for _ in range(count)]
