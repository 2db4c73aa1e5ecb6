"""Outputs of which a request wants the top classes."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping
from functools import partial

from fovea_server.models.model import ServedModel
from fovea_server.tensors.classification import check_class_type, classify
from fovea_server.tensors.messages import InferResponse

# Sorting this many elements takes about a millisecond.
_MANY = 65_536


def check_classes(model: ServedModel, classes: Container[str]) -> None:
    """Raise InvalidRequest if an output that is asked for its top classes has none."""
    for tensor in model.signature.outputs:
        if tensor.name in classes:
            check_class_type(tensor.datatype)


async def replace_by_classes(
    response: InferResponse, classes: Mapping[str, int], model: ServedModel
) -> None:
    """Replace outputs by their top classes."""
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
