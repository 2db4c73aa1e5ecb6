"""Writes a template of a head and its test, for the outputs of a model (`fovea init --head`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from keyword import iskeyword
from math import prod
from pathlib import Path

from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidOption, UnsupportedModel

# Length that stands for a dynamic dimension.
_ROWS = 5
_SIZE = (640, 640)
# Possible strides of a feature map: the number of input pixels per cell, in each direction.
_STRIDES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """An output of the model that a head may read.

    Attributes:
        name: name of the output.
        shape: shape for one image; it includes the batch dimension if `batched` is True.
        batched: True if the first dimension is the batch.
        floats: True if the values are floating-point numbers.
        axes: axes along which the boxes are, not counting the batch dimension: one axis, or two
            axes for a grid of cells.
    """

    name: str
    shape: tuple[int, ...]
    batched: bool = True
    floats: bool = True
    axes: tuple[int, ...] = (0,)

    @property
    def one(self) -> tuple[int, ...]:
        """The shape for one image, without the batch dimension."""
        return self.shape[1:] if self.batched else self.shape

    @property
    def grid(self) -> tuple[int, ...]:
        """Height and width of the grid of cells; empty if the boxes are along one axis."""
        return tuple(self.one[axis] for axis in self.axes) if len(self.axes) == 2 else ()

    @property
    def rows(self) -> int:
        """The number of boxes."""
        return prod(self.one[axis] for axis in self.axes) if self.one else 1

    @property
    def columns(self) -> int:
        """The number of values per box."""
        return prod(self.one) // max(self.rows, 1)

    @property
    def table(self) -> str:
        """A Python expression that reshapes the output to [boxes, values]."""
        image = f'outputs["{self.name}"]{"[0]" * self.batched}'
        if self._columns_first:
            return f"{image}.T" if len(self.one) == 2 else f"{image}.reshape({self.columns}, -1).T"
        moved = f"np.moveaxis({image}, {self.axes[0]}, 0)" if self.axes[0] else image
        return image if len(self.one) == 2 else f"{moved}.reshape({self.rows}, -1)"

    def place(self, row: int, column: int | str) -> str:
        """Return a Python expression for one value of a box, or "" if none is simple."""
        first, second = (column, row) if self._columns_first else (row, column)
        if len(self.one) == 2:
            return f'outputs["{self.name}"][{"0, " * self.batched}{first}, {second}]'
        if self._columns_first:
            return f'outputs["{self.name}"].reshape({self.columns}, -1)[{first}, {second}]'
        if self.axes[0]:
            return ""
        return f'outputs["{self.name}"].reshape({self.rows}, -1)[{first}, {second}]'

    @property
    def _columns_first(self) -> bool:
        return self.axes[-1] == len(self.one) - 1 and self.axes[0] > 0


_USUAL = HeadOutput("boxes", (1, 8400, 4)), HeadOutput("scores", (1, 8400, 80))


@dataclass(frozen=True, slots=True)
class NewHead:
    """The data from which the template of a head is written.

    Attributes:
        module: name of the module to write.
        model: file name of the model, for comments in the template.
        boxes: the output that contains the boxes.
        scores: the output that contains the class scores; the same as `boxes` if one output
            contains both.
        size: (height, width) of the model's input, in pixels.
    """

    module: str
    model: str
    boxes: HeadOutput
    scores: HeadOutput
    size: tuple[int, int]

    @classmethod
    def of(cls, file: Path, model: Path | None) -> NewHead:
        """Choose the outputs that the head reads, from the outputs of a model.

        Args:
            file: file to write.
            model: file of the model; None for a template with common names and shapes.

        Raises:
            InvalidOption: Python cannot import a file with the name of `file`.
        """
        name = file.stem
        if file.suffix != ".py" or not name.isidentifier() or iskeyword(name) or find_spec(name):
            raise InvalidOption(
                f"--head {file}: the file name must be a valid and unused name of a Python "
                "module, such as my_head.py"
            )
        if model is None:
            return cls(file.stem, "model.onnx", *_USUAL, _SIZE)
        outputs, size = _run_samples(model)
        chosen = [one for one in outputs if one.floats and one.one] or outputs
        boxes = next((one for one in chosen if one.columns == 4), None)
        scores = next(
            (one for one in chosen if boxes and one is not boxes and one.rows == boxes.rows), None
        )
        if boxes is None or scores is None:
            boxes = scores = max(chosen, key=lambda one: one.columns > 4)
        return cls(file.stem, model.name, boxes, scores, size)

    @property
    def name(self) -> str:
        """Name of the class, for example MyHead for my_head."""
        return "".join(part[:1].upper() + part[1:] for part in self.module.split("_"))

    @property
    def read(self) -> tuple[HeadOutput, ...]:
        """The outputs that the head reads."""
        return tuple(dict.fromkeys((self.boxes, self.scores)))

    @property
    def files(self) -> Mapping[str, bytes]:
        """Content of the head file and of its test file, by file name."""
        texts = {f"{self.module}.py": self._head, f"test_{self.module}.py": self._test}
        return {name: text.encode() for name, text in texts.items()}

    @property
    def _head(self) -> str:
        shapes = ", ".join(f"{one.name} {list(one.shape)}" for one in self.read)
        names = ", ".join(f'"{one.name}"' for one in self.read)
        batched = all(one.batched for one in self.read)
        unbatched = "" if batched else "    batched = False  # one image has these outputs whole\n"
        grid, cells = self.boxes.grid, ""
        if grid:
            stride = self.size[0] // grid[0]
            cells = f"        # A box is of a cell of {stride} pixels, and they have centres at\n"
            cells += f"        #   ys, xs = {stride} * (np.indices({grid}).reshape(2, -1) + 0.5)\n"
        if self.boxes is self.scores:
            reading = f"        rows = {self.boxes.table}\n"
            reading += "        boxes, scores = rows[:, :4], rows[:, 4:]\n"
        else:
            reading = f"        boxes = {self.boxes.table}\n        scores = {self.scores.table}\n"
        return f'''\
"""Decodes {self.model}: `fovea build {self.model} --head {self.module}.py`."""

from collections.abc import Mapping

import numpy as np

from fovea_engines.api import Array, CustomHead, Detections, PredictOptions, corners, detections


class {self.name}(CustomHead):
    """Finds the objects of one image. `fovea build` checks them against the source model's."""

    # Names of the model's outputs that decode reads.
    outputs = ({names}{"," * (len(self.read) == 1)})
{unbatched}\
    # Names of the classes, in the order of the training; () takes the model's, or --labels.
    labels = ()
    # In what the training differs from images in RGB, 0 to 1, letterboxed around the centre; such
    # as {{"fit": "stretch", "channels": "BGR", "scale": 1.0}} for stretched BGR of 0 to 255.
    preprocess = {{}}
    # "detect", "segment", "pose" and "obb" return Detections; "classify" returns
    # best_classes(probabilities, options). docs/how-to/own-head.md has them all.
    task = "detect"

    def decode(self, outputs: Mapping[str, Array], options: PredictOptions) -> Detections:
        """Return the objects of one image, in pixels of the model's input."""
        # One image as float32: {shapes}
{reading}\
        # A box is x1 y1 x2 y2 in pixels of the input. If the model has it otherwise:
        #   corners(boxes)                                  of cx cy w h
        #   boxes * np.array([width, height] * 2)           of shares of the sides
        # with: height, width = self.size
{cells}\
        # A score is 0 to 1. Of logits: scores = 1 / (1 + np.exp(-scores))
        best, class_ids = scores.max(axis=1), scores.argmax(axis=1)
        # This drops what scores under options.conf, and duplicates by options.iou. Where the model
        # has no duplicates: suppress=False
        return detections(boxes, best, class_ids, options)
'''

    @property
    def _test(self) -> str:
        empty = "".join(
            f'        "{one.name}": np.zeros({one.shape}, np.float32),\n' for one in self.read
        )
        first = 4 * (self.boxes is self.scores)
        classes = self.scores.columns - first
        class_id = min(1, classes - 1)
        row = min(7, self.boxes.rows - 1)
        planted = "    # Write an object into the outputs, as the model does.\n"
        box, score = self.boxes.place(row, ":4"), self.scores.place(row, first + class_id)
        if box and score and class_id >= 0:
            planted += f"    {box} = 100, 200, 300, 400\n    {score} = 0.9\n"
            expected = f"""\
    assert found.boxes.tolist() == [[100, 200, 300, 400]]
    assert found.class_ids.tolist() == [{class_id}]
"""
        else:
            expected = "    assert len(found) == 0  # of the objects that you wrote\n"
        return f'''\
"""Tests {self.module}.py: `pytest test_{self.module}.py`.

Write objects as the model writes them: that it writes them so, `fovea build --images DIR` checks.
"""

import numpy as np
from {self.module} import {self.name}

from fovea_engines.api import PredictOptions

SIZE = {self.size}  # height and width of the model's input, pixels


def empty():
    """Return the outputs for an image with nothing on it."""
    return {{
{empty}\
    }}


def test_nothing_is_found_where_nothing_is():
    assert len({self.name}(SIZE).decode(empty(), PredictOptions())) == 0


def test_an_object_is_found():
    outputs = empty()
{planted}\
    found = {self.name}(SIZE).decode(outputs, PredictOptions(conf=0.5))
{expected}'''


def _run_samples(model: Path) -> tuple[Sequence[HeadOutput], tuple[int, int]]:
    """Run a model on sample images; return its outputs, and the height and width of its input."""
    from fovea_engines.evaluation.observe import Observer
    from fovea_engines.heads.signature import image_layout, image_sides
    from fovea_engines.onnx_graph.load import load
    from fovea_engines.onnx_graph.normalise import pin_inputs
    from fovea_engines.onnx_graph.tensors import graph_inputs, graph_outputs

    graph = load(model).proto
    with suppress(UnsupportedModel, InvalidOption):
        pin_inputs(graph, None)
    image, *_ = graph_inputs(graph)
    if image_layout(image) is None:
        raise UnsupportedModel(
            f"input {image.name} of {model} is not a colour image, so no head can decode its "
            "results: to serve its tensors, copy the file to repository/NAME/1/model.onnx"
        )
    height, width = image_sides(image)
    size = _SIZE if -1 in (height, width) else (height, width)
    seen = Observer(graph)(None)
    return [
        _output(spec, [each[spec.name].shape for each in seen], size)
        for spec in graph_outputs(graph)
    ], size


def _output(spec: TensorSpec, seen: Sequence[tuple[int, ...]], size: tuple[int, int]) -> HeadOutput:
    shapes = seen or [spec.shape]
    batched = all(shape[:1] in ((1,), (-1,)) for shape in shapes)
    shape = tuple(
        side if side > 0 and len(set(found)) == 1 else _ROWS
        for side, *found in zip(shapes[0], *shapes, strict=True)
    )
    shape = (1, *shape[1:]) if batched else shape
    one = shape[batched:]
    for axes in ((1, 2), (0, 1)) if len(one) == 3 else ():
        height, width = (one[axis] for axis in axes)
        if height > 1 and width > 1 and size[0] / height == size[1] / width in _STRIDES:
            return HeadOutput(spec.name, shape, batched, spec.dtype.startswith("float"), axes)
    # The boxes are along a dynamic dimension; if there is none, along the largest dimension.
    sides = [sys.maxsize if side == -1 else side for side in spec.shape[batched:]]
    axis = sides.index(max(sides)) if sides else 0
    return HeadOutput(spec.name, shape, batched, spec.dtype.startswith("float"), (axis,))
