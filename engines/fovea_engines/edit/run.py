"""Runs models without optimisation, to compare them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import onnx

from fovea_engines.edit.edited import copy_model, first_input, has_batch
from fovea_engines.heads.metadata import image_size
from fovea_engines.onnx_graph.plain_session import expose_tensors, onnxruntime_errors, open_plain
from fovea_engines.onnx_graph.tensors import graph_inputs, metadata_of
from fovea_engines.session import Array, TensorSpec

Feed: TypeAlias = Mapping[str, Array]

_SIZE = (320, 320)  # default image size if neither the model nor its metadata has one
_LENGTH = 16  # default length of a dynamic dimension other than height and width
_PATCH = 32  # side of a patch in pixels
# Pattern of a node's name in three kinds of errors: of ONNX Runtime while running, of ONNX Runtime
# while loading, and of shape inference.
_NODE = re.compile(r"Name:'([^']+)'|Node ?(?:\(|:)([^ )]+)|node name: ([^)]+)\)")


def sample(model: onnx.ModelProto, rows: int) -> dict[str, Array]:
    """Return random values for all inputs of a model, the same in every call.

    Floats are from 0 to 1, and integers are from 1 to 255. All pixels of a patch have the same
    value, so that the input resembles an image.

    Noise without patches differs too much from the training data of models. Then rounding errors
    can grow inside the model.
    """
    random = np.random.default_rng(0)
    size = image_size(metadata_of(model)) or _SIZE
    return {spec.name: _sample(spec, rows, size, random) for spec in graph_inputs(model)}


def _sample(
    spec: TensorSpec, rows: int, size: tuple[int, int], random: np.random.Generator
) -> Array:
    first = 2 if len(spec.shape) == 4 and spec.shape[3] != 3 else 1
    sides = dict(enumerate(size, first))
    shape = [sides.get(i, _LENGTH) if n == -1 else n for i, n in enumerate(spec.shape)]
    if has_batch(spec):
        shape[0] = rows
    values = random.random(shape, np.float32)
    for axis in sides if len(shape) > 2 else ():
        values = values.take(np.arange(shape[axis]) // _PATCH, axis)
    if spec.numpy_dtype.kind in "iu":
        values = 1 + 254 * values
    return values.astype(spec.numpy_dtype)


def run(
    model: onnx.ModelProto, names: Sequence[str], feed: Feed, *, alone: bool = False
) -> dict[str, list[Array]]:
    """Run a model, and return the values of named tensors, which may be inner tensors.

    If the model has a fixed batch size, the rows are split into several calls. If the batch size is
    dynamic and `alone` is True, each row is a separate call. Some files declare a dynamic batch,
    but work only for one row.

    Returns:
        Name of each tensor -> its arrays, one array for each call.

    Raises:
        UnsupportedModel: ONNX Runtime cannot load or run the model. The message is a text about the
            failing node, or ONNX Runtime's own message.
    """
    wanted = [name for name in dict.fromkeys(names) if name not in feed]
    with onnxruntime_errors(partial(find_failing_node, model)):
        session = open_plain(expose_tensors(name_nodes(model), wanted))
        calls = [session.run(wanted, part) for part in _calls(model, feed, alone)] if wanted else []
    found = {name: [call[i] for call in calls] for i, name in enumerate(wanted)}
    return found | {name: [feed[name]] for name in names if name in feed}


def name_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model, and give every node a name.

    Error messages contain these names.
    """
    copy = copy_model(model)
    for node in copy.graph.node:
        node.name = node.name or node.output[0]
    return copy


def find_failing_node(model: onnx.ModelProto, text: str) -> str:
    """Return a text about the failing node that an error names.

    The model must come from `name_nodes`. If the error names no node, return its first line.
    """
    match = _NODE.search(text)
    name = next(filter(None, match.groups())) if match else ""
    node = next((n for n in model.graph.node if name and name in (n.name, *n.output)), None)
    return text.strip().splitlines()[0] if node is None else f"node {name!r} ({node.op_type})"


def _calls(model: onnx.ModelProto, feed: Feed, alone: bool) -> Iterator[dict[str, Array]]:
    """Yield the input arrays for each call, with the batch size of the model."""
    first = first_input(model)
    total = len(feed[first.name])
    batch = (1 if alone else total) if first.shape[0] == -1 else first.shape[0]
    for start in range(0, total, batch):
        yield {
            name: array[start : start + batch] if array.shape[:1] == (total,) else array
            for name, array in feed.items()
        }
