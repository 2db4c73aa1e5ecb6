"""A histogram of how many rows the executions of a model had."""

from __future__ import annotations

from collections.abc import Mapping

from fovea_server.statistics.family import Family, Labels

_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128)


def batch_family() -> Family:
    """Make the family of the batches of all models."""
    return Family("fovea_batch_rows", "histogram", "Rows, or images, of each execution of a model")


def add_batches(family: Family, labels: Labels, executions: Mapping[int, int]) -> None:
    """Add the histogram of a model: its executions by their number of rows."""
    for bound in _BOUNDS:
        count = sum(times for rows, times in executions.items() if rows <= bound)
        family.add({**labels, "le": str(float(bound))}, count, "_bucket")
    total = sum(executions.values())
    family.add({**labels, "le": "+Inf"}, total, "_bucket")
    family.add(labels, total, "_count")
    family.add(labels, sum(rows * times for rows, times in executions.items()), "_sum")
