"""The layers of a plan as a table for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fovea_engines.backends.tensorrt.layers import PlanLayers
from fovea_engines.session import TensorSpec

if TYPE_CHECKING:
    from rich.table import Table

_KINDS = 6
_SOURCES = {
    "engine": "as they run on the GPU, fused",
    "network": "as they were built, before a GPU fuses them at load",
}


def layers_summary(layers: PlanLayers) -> str:
    """How many layers there are, and in which precision those of a type compute."""
    counted = Counter((layer.type, layer.precision) for layer in layers.layers)
    kinds = [
        f"{count} {kind} {precision}".rstrip()
        for (kind, precision), count in counted.most_common(_KINDS)
    ]
    if more := len(layers.layers) - sum(count for _, count in counted.most_common(_KINDS)):
        kinds.append(f"{more} others")
    return f"{len(layers.layers)} layers, {_SOURCES[layers.source]}: {', '.join(kinds)}"


def layer_table(layers: PlanLayers) -> Table:
    """One layer a row."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("layer", overflow="fold")
    table.add_column("type", no_wrap=True)
    table.add_column("precision", no_wrap=True)
    table.add_column("gives", overflow="fold")
    for layer in layers.layers:
        cells = (layer.name, layer.type, layer.precision)
        table.add_row(*map(Text, (*cells, _shapes(layer.outputs))))
    return table


def _shapes(tensors: tuple[TensorSpec, ...]) -> str:
    counted = Counter(_text(tensor.shape) for tensor in tensors)
    return "\n".join(f"{count} of {text}" if count > 1 else text for text, count in counted.items())


def _text(shape: tuple[int, ...]) -> str:
    return "x".join("?" if length == -1 else str(length) for length in shape) or "one value"
