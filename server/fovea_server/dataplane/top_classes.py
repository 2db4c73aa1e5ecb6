"""Replaces outputs by their top classes (Triton's classification extension)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Mapping, Sequence
from functools import partial

import numpy as np

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest
from fovea_server.models.model import ServedModel
from fovea_server.tensors.messages import InferResponse, OutputTensor

# Datatypes that Triton cannot sort, so it rejects them.
_UNSUPPORTED = frozenset({"BOOL", "FP16", "BF16", "BYTES"})

# Number of elements. Sorting more elements takes longer than about a millisecond.
_MANY = 65_536


def check_class_type(datatype: str) -> None:
    """Raise InvalidRequest if an output of this datatype cannot be classified."""
    if datatype in _UNSUPPORTED:
        raise InvalidRequest(
            f"class result not available for output due to unsupported type '{datatype}'"
        )


def classify(
    tensor: OutputTensor, k: int, labels: Sequence[str] | None, *, batched: bool
) -> OutputTensor:
    """Return the largest `k` elements of each row as text, largest first.

    Args:
        tensor: output with a datatype that `check_class_type` accepts. All dimensions except the
            batch dimension are flattened.
        k: number of elements to return, at least 1. If a row has fewer elements, all of them are
            returned.
        labels: class names by index; the list may be shorter than a row.
        batched: True if the first dimension is the batch.

    Returns:
        BYTES tensor of shape [rows, k], or [k] if `batched` is False. Each element is
        ``value:index`` or ``value:index:label``. Floats have the format of C's ``%f``.
    """
    shape = tensor.shape if batched else (1, *tensor.shape)
    rows = tensor.array.reshape(shape[0], math.prod(shape[1:]))
    classes = np.empty((len(rows), min(k, rows.shape[1])), object)
    for row, best in zip(rows, classes, strict=True):
        best[:] = [_text(row, index, labels) for index in _find_largest(row, len(best)).tolist()]
    return OutputTensor(tensor.name, "BYTES", classes if batched else classes[0])


def _find_largest(row: Array, k: int) -> Array:
    """Return the indices of the largest `k` elements, largest first.

    Equal elements keep their order, and NaN comes last.
    """
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    if k == 0:
        return np.empty(0, np.intp)
    # Partition the row first, and then sort only the largest k elements, which takes linear time.
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


def check_classes(model: ServedModel, classes: Container[str]) -> None:
    """Raise InvalidRequest if an output in `classes` cannot be classified."""
    for tensor in model.signature.outputs:
        if tensor.name in classes:
            check_class_type(tensor.datatype)


async def replace_by_classes(
    response: InferResponse, classes: Mapping[str, int], model: ServedModel
) -> None:
    """Replace the outputs in `classes` by their top classes."""
    for index, tensor in enumerate(response.outputs):
        if not (k := classes.get(tensor.name, 0)):
            continue
        work = partial(
            classify,
            tensor,
            k,
            model.labels_of(tensor.name),
            batched=model.signature.max_batch_size > 0,
        )
        large = tensor.array.size > _MANY
        response.outputs[index] = await asyncio.to_thread(work) if large else work()
