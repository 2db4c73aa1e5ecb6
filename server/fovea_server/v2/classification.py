"""The classification extension: the best classes of an output in place of the output.

Source: "Classification Extension" of Triton's protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fovea_engines.backends.base import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.v2.messages import OutputTensor

# Triton sorts no half floats: clients that ask for them get its words.
_UNSUPPORTED = frozenset({"BOOL", "FP16", "BF16", "BYTES"})


def classify(
    tensor: OutputTensor, k: int, labels: Sequence[str] | None, *, batched: bool
) -> OutputTensor:
    """The best `k` elements of each row as text, best first.

    Args:
        tensor: of numbers; all dimensions but the batch are taken as one.
        k: how many; where a row has fewer, all of them. 0 hands the tensor back as it is.
        labels: names by index; an index without one has none.
        batched: the first dimension is the batch.

    Returns:
        BYTES [rows, k], or [k] without a batch: ``value:index`` or ``value:index:label``, with
        fractions as C's ``%f``.

    Raises:
        InvalidRequest: its type has no order that Triton knows.
    """
    if k == 0:
        return tensor
    if tensor.datatype in _UNSUPPORTED:
        raise InvalidRequest(
            f"class result not available for output due to unsupported type '{tensor.datatype}'"
        )
    shape = tensor.shape if batched else (1, *tensor.shape)
    rows = tensor.array.reshape(shape[0], math.prod(shape[1:]))
    classes = np.empty((len(rows), min(k, rows.shape[1])), object)
    for row, best in zip(rows, classes, strict=True):
        best[:] = [_text(row, index, labels) for index in _descending(row)[: len(best)].tolist()]
    return OutputTensor(tensor.name, "BYTES", classes if batched else classes[0])


def _descending(row: Array) -> Array:
    """Indices from the largest down, equal ones in order, those that are not numbers last."""
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    return len(row) - 1 - np.argsort(keys[::-1], kind="stable")[::-1]


def _text(row: Array, index: int, labels: Sequence[str] | None) -> bytes:
    value = row[index].item()
    text = f"{value:f}:{index}" if isinstance(value, float) else f"{value}:{index}"
    if labels is not None and index < len(labels) and labels[index]:
        text += f":{labels[index]}"
    return text.encode()
