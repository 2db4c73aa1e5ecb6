"""The classification extension: the best classes of an output in place of the output.

Source: "Classification Extension" of Triton's protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.tensors.messages import OutputTensor

# Triton sorts no half floats: clients that ask for them get its words.
_UNSUPPORTED = frozenset({"BOOL", "FP16", "BF16", "BYTES"})


def check_class_type(datatype: str) -> None:
    """Whether tensors of a type can be classified.

    Raises:
        InvalidRequest: it has no order that Triton knows.
    """
    if datatype in _UNSUPPORTED:
        raise InvalidRequest(
            f"class result not available for output due to unsupported type '{datatype}'"
        )


def classify(
    tensor: OutputTensor, k: int, labels: Sequence[str] | None, *, batched: bool
) -> OutputTensor:
    """The best `k` elements of each row as text, best first.

    Args:
        tensor: of a type that `check_class_type` lets through; all dimensions but the batch are
            taken as one.
        k: how many, from 1; where a row has fewer, all of them.
        labels: names by index; an index without one has none.
        batched: the first dimension is the batch.

    Returns:
        BYTES [rows, k], or [k] without a batch: ``value:index`` or ``value:index:label``, with
        fractions as C's ``%f``.
    """
    shape = tensor.shape if batched else (1, *tensor.shape)
    rows = tensor.array.reshape(shape[0], math.prod(shape[1:]))
    classes = np.empty((len(rows), min(k, rows.shape[1])), object)
    for row, best in zip(rows, classes, strict=True):
        best[:] = [_text(row, index, labels) for index in _descending(row, len(best)).tolist()]
    return OutputTensor(tensor.name, "BYTES", classes if batched else classes[0])


def _descending(row: Array, k: int) -> Array:
    """Indices of the largest `k`, equal ones in order, those that are not numbers last."""
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    if k == 0:
        return np.empty(0, np.intp)
    # Finding the smallest that is told, and sorting no more than what is told, is linear.
    least = np.partition(keys, len(keys) - k)[len(keys) - k]
    larger = np.flatnonzero(keys > least)
    order = len(larger) - 1 - np.argsort(keys[larger][::-1], kind="stable")[::-1]
    return np.concatenate([larger[order], np.flatnonzero(keys == least)[: k - len(larger)]])


def _text(row: Array, index: int, labels: Sequence[str] | None) -> bytes:
    value = row[index].item()
    text = f"{value:f}:{index}" if isinstance(value, float) else f"{value}:{index}"
    if labels is not None and index < len(labels) and labels[index]:
        text += f":{labels[index]}"
    return text.encode()
