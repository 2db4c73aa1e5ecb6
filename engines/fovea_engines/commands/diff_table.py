"""A diff as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fovea_engines.diff.describe import decibels, shape
from fovea_engines.diff.diff import Diff
from fovea_engines.diff.network import Layer
from fovea_engines.diff.verdict import Comparison

if TYPE_CHECKING:
    from rich.table import Table

_AROUND = 3
_LOWEST = 6
_NAMES_SHOWN = 6


def header(diff: Diff) -> str:
    """What was compared, in a few lines."""
    by = [one.by for one in diff.layers]
    lines = [
        f"A: {diff.a} ({diff.precision_a})",
        f"B: {diff.b} ({diff.precision_b})",
        f"fed: {', '.join(diff.images)}",
        f"tensors: {by.count('name')} matched by name, {by.count('order')} by order; "
        f"without a counterpart {len(diff.unmatched_a)} of A, {len(diff.unmatched_b)} of B",
    ]
    for side, layers in (("A", diff.unmatched_a), ("B", diff.unmatched_b)):
        if layers:
            lines.append(f"  only in {side}: {_names(layers)}")
    return "\n".join(lines)


def diff_table(diff: Diff, *, everything: bool = False, values: bool = False) -> Table:
    """The layers that matter: those around the first that diverges, or the lowest; the outputs.

    Args:
        diff: what was measured.
        everything: every layer instead.
        values: the first values that are not zero as well.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    table.add_column("#", justify="right")
    table.add_column("tensor of A\n~ of B, if other", overflow="fold")
    table.add_column("range of A\nand of B", justify="right", no_wrap=True)
    table.add_column("cosine", justify="right")
    table.add_column("SNR dB", justify="right")
    table.add_column("max error", justify="right")
    if values:
        table.add_column("first values of A\nand of B", overflow="fold")
    last = -1
    for position in range(len(diff.layers)) if everything else _chosen(diff):
        one = diff.layers[position]
        if position > last + 1:
            table.add_section()
        last = position
        cells = [str(position), _title(one), *_figures(one)]
        if values and one.figures is not None:
            cells.append("\n".join(" ".join(f"{v:.4g}" for v in row) for row in one.figures.values))
        style = "bold red" if one is diff.first else "red" if one.state == "diverges" else ""
        table.add_row(*map(Text, cells), style=style)
    return table


def _chosen(diff: Diff) -> list[int]:
    outputs = {i for i, one in enumerate(diff.layers) if one.a.is_output}
    if diff.first is not None:
        first = diff.layers.index(diff.first)
        around = range(max(0, first - _AROUND), min(len(diff.layers), first + _AROUND + 1))
        return sorted(outputs.union(around))
    lowest = sorted(range(len(diff.layers)), key=lambda i: diff.layers[i].snr_db)[:_LOWEST]
    return sorted(outputs.union(lowest))


def _title(one: Comparison) -> str:
    name = one.a.name if one.by == "name" else f"{one.a.name}\n~ {one.b.name}"
    op = " ~ ".join(dict.fromkeys(op for op in (one.a.op, one.b.op) if op))
    marks: list[str] = [one.state] if one.state != "agrees" else []
    marks += ["output"] if one.a.is_output else []
    return f"{name}\n{', '.join([f'{op} {shape(one.a)}'.lstrip(), *marks])}"


def _figures(one: Comparison) -> tuple[str, str, str, str]:
    found = one.figures
    if found is None:
        return "", "", f"shape\n{shape(one.b)}", ""
    ranges = "\n".join(f"{low:.4g} .. {high:.4g}" for low, high in (found.range_a, found.range_b))
    snr = f"{found.broken} not finite" if found.broken else decibels(one.snr_db)
    return ranges, f"{found.cosine:.5f}", snr.removesuffix(" dB"), f"{found.max_error:.3g}"


def _names(layers: Sequence[Layer]) -> str:
    more = f", ... ({len(layers)})" if len(layers) > _NAMES_SHOWN else ""
    return ", ".join(layer.name for layer in layers[:_NAMES_SHOWN]) + more
