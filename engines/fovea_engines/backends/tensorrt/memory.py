"""Computes the GPU memory of a session before any of it is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from fovea_engines.backends.cuda.base import Device
from fovea_engines.backends.tensorrt.tensors import Tensor
from fovea_engines.plural import counted
from fovea_preprocess.errors import OutOfMemory


@dataclass(frozen=True, slots=True)
class SlotSize:
    """The memory of one slot.

    Attributes:
        activations: bytes of the engine's working memory.
        buffers: bytes of inputs and outputs, and of images that become inputs.
        rows: of the largest batch.
    """

    activations: int
    buffers: int
    rows: int

    @classmethod
    def of(cls, engine: Any, tensors: Iterable[Tensor], rows: int, images: int) -> Self:
        """Compute a slot's memory for an `ICudaEngine`, a number of rows, and bytes of images."""
        buffers = rows * sum(tensor.row_bytes for tensor in tensors) + images
        return cls(engine.device_memory_size_v2, buffers, rows)


def check_memory(device: Device, size: SlotSize, slots: int) -> None:
    """Compare the memory of all slots with the free memory; the device is current.

    Raises:
        OutOfMemory: it does not fit; the message has the figures and what to do.
    """
    needed = slots * (size.activations + size.buffers)
    free, total = device.memory()
    if needed <= free:
        return
    ways = [f"a build with a --max-batch below {size.rows}"] if size.rows > 1 else []
    ways += ["stopping what else uses the GPU"]
    raise OutOfMemory(
        f"the engine needs {_megabytes(needed)} beside its weights, and {device.name} has "
        f"{_megabytes(free)} of {_megabytes(total)} free: {counted(slots, 'slot')} of "
        f"{_megabytes(size.activations)} to compute in and {_megabytes(size.buffers)} for inputs "
        f"and outputs. What helps: {', '.join(ways)}"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
