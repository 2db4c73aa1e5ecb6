"""Describes values of a graph that depend on the image size.

They are lengths, e.g. the number of cells, and tables with a value for each cell of the grid. A
*level* is one grid of a detector. Its cells are squares of `stride` pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol, TypeAlias

import numpy as np

from fovea_engines.onnx_graph.writer import Writer
from fovea_engines.session import Array

Size: TypeAlias = tuple[int, int]
"""Height and width of the image in pixels. Both are multiples of the strides."""

# Smallest step between the values of neighbouring cells, in pixels or cells. A smaller step means
# that the table is divided by the image size, e.g. has centres from 0 to 1, so it would not fit
# other sizes.
_MIN = 0.25


class Sides:
    """Writes nodes that compute the numbers of rows and columns of a level from the image."""

    def __init__(self, write: Writer, image: str, axis: int) -> None:
        self.write = write
        self._image = image
        self._axis = axis
        self._made: dict[tuple[int, ...], str] = {}

    def count(self, stride: int, axis: int) -> str:
        """Return the tensor with the number of rows (axis 0) or columns (axis 1) of a level.

        The tensor is an int64 scalar. The nodes are written only once.
        """
        if (stride, axis) not in self._made:
            shape = self._made.setdefault((), self.write("Shape", self._image))
            pixels = self.write("Gather", shape, np.array(self._axis + axis))
            self._made[stride, axis] = self.write("Div", pixels, np.array(stride))
        return self._made[stride, axis]

    def numbers(self, stride: int, axis: int, dtype: str, after: int) -> str:
        """Return the tensor with the indices of all rows (axis 0) or columns (axis 1) of a level.

        The tensor has `after` additional axes of length 1 at the end.
        """
        end = self.count(stride, axis)
        found = self.write.cast(self.write("Range", np.array(0), end, np.array(1)), dtype)
        return self.write("Reshape", found, np.array([-1, *[1] * after]))


@dataclass(frozen=True, slots=True)
class Length:
    """A length that depends on the image size.

    Attributes:
        strides: strides of the levels in pixels.
        of: objects that are counted: the rows, columns or cells of the levels.
        times: factor of the count, e.g. the number of boxes per cell.
    """

    strides: tuple[int, ...]
    of: Literal["rows", "columns", "cells"] = "cells"
    times: int = 1

    def at(self, size: Size) -> int:
        """Return the length of the tensor dimension for an input of this image size."""
        return self.times * sum(
            prod(size[axis] // stride for axis in self._axes) for stride in self.strides
        )

    def write(self, sides: Sides) -> str:
        """Write nodes that compute the length, and return the name of the tensor, int64 [1]."""
        write, total = sides.write, ""
        for stride in self.strides:
            count, *more = (sides.count(stride, axis) for axis in self._axes)
            part = write("Mul", count, *more) if more else count
            total = write("Add", total, part) if total else part
        if self.times > 1:
            total = write("Mul", total, np.array(self.times))
        return write("Reshape", total, np.array([1]))

    @property
    def _axes(self) -> tuple[int, ...]:
        return {"rows": (0,), "columns": (1,), "cells": (0, 1)}[self.of]


class Sized(Protocol):
    """A value that depends on the image size, and replaces a constant."""

    def at(self, size: Size) -> Array:
        """Return the value for an image size."""
        ...

    def write(self, sides: Sides) -> str:
        """Write nodes that compute the value, and return the name of the tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Numbers:
    """A list of int64 numbers, e.g. the target shape of a Reshape. Some may depend on the size."""

    entries: tuple[int | Length, ...]

    def at(self, size: Size) -> Array:
        """Return the list for an image size."""
        return np.array([e if isinstance(e, int) else e.at(size) for e in self.entries], np.int64)

    def write(self, sides: Sides) -> str:
        """Write nodes that compute the list, and return the name of the tensor."""
        parts = [np.array([e]) if isinstance(e, int) else e.write(sides) for e in self.entries]
        return sides.write("Concat", *parts, axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The table of one level: value = `base` + row * `by_row` + column * `by_column`.

    All three arrays have the shape [..., 1, 1, ...], with length 1 along the rows and columns.
    """

    stride: int
    axis: int
    base: Array
    by_row: Array
    by_column: Array

    def at(self, size: Size) -> Array:
        rows, columns = (
            np.arange(side // self.stride, dtype=self.base.dtype).reshape(-1, *[1] * after)
            for side, after in zip(size, self._after, strict=True)
        )
        found: Array = self.base + rows * self.by_row + columns * self.by_column
        return found

    def write(self, sides: Sides) -> str:
        write, dtype = sides.write, self.base.dtype.name
        rows, columns = (
            sides.numbers(self.stride, axis, dtype, after) for axis, after in enumerate(self._after)
        )
        along = write("Add", self.base, write("Mul", rows, self.by_row))
        return write("Add", along, write("Mul", columns, self.by_column))

    @property
    def _after(self) -> tuple[int, int]:
        return self.base.ndim - self.axis - 1, self.base.ndim - self.axis - 2


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table with a value for each cell of one or several levels.

    If `flat` is None, there is one level. Its rows are along `axis`, and its columns are along the
    next axis. Otherwise `flat` is a shape with -1 at `axis`. Along this axis, the cells of all
    levels follow each other.
    """

    levels: tuple[_Level, ...]
    axis: int
    flat: tuple[int, ...] | None

    def at(self, size: Size) -> Array:
        """Return the table for an image size."""
        tables = [level.at(size) for level in self.levels]
        if self.flat is None:
            return tables[0]
        return np.concatenate([table.reshape(self.flat) for table in tables], self.axis)

    def write(self, sides: Sides) -> str:
        """Write nodes that compute the table, and return the name of the tensor."""
        tables = [level.write(sides) for level in self.levels]
        if self.flat is None:
            return tables[0]
        flat = [sides.write("Reshape", table, np.array(self.flat)) for table in tables]
        return sides.write("Concat", *flat, axis=self.axis) if len(flat) > 1 else flat[0]


def plane_table(values: Array, axis: int, stride: int) -> Table | None:
    """Return the table of one level that has these values, with rows along `axis`.

    If the values do not follow the rule of a table, return None.
    """
    level = _level(values, axis, stride)
    return None if level is None else Table((level,), axis, None)


def flat_table(values: Array, axis: int, length: Length, size: Size) -> Table | None:
    """Return the table that has these values, with the cells of all levels along `axis`.

    If the values do not follow the rule of a table, return None.

    The levels may be in the order of increasing or decreasing strides. The values for the boxes of
    one cell may be neighbours. Or, in each level, the values for the first box of all cells come
    first, and then the values for the second box.
    """
    shape = (*values.shape[:axis], -1, *values.shape[axis + 1 :])
    for strides in (length.strides, length.strides[::-1]):
        for apart in (False, True)[: length.times]:
            found = list(_levels(values, axis, strides, length.times, size, apart))
            if None not in found:
                return Table(tuple(filter(None, found)), axis, shape)
    return None


def _levels(
    values: Array, axis: int, strides: Sequence[int], times: int, size: Size, apart: bool
) -> Iterator[_Level | None]:
    start = 0
    for stride in strides:
        grid = size[0] // stride, size[1] // stride
        count = times * prod(grid)
        part = values.take(range(start, start + count), axis)
        inner = (times, *grid) if apart else (*grid, times)
        level = part.reshape(*values.shape[:axis], *inner, *values.shape[axis + 1 :])
        yield _level(level, axis + apart, stride)
        start += count


def _level(values: Array, axis: int, stride: int) -> _Level | None:
    """Return the level that has exactly these values, or None if they do not follow the rule."""
    rows, columns = values.shape[axis : axis + 2]
    if rows < 2 or columns < 2 or values.dtype.kind not in "fi":
        return None
    at = [values.take([row], axis).take([column], axis + 1) for row, column in _CORNER]
    level = _Level(stride, axis, at[0], at[1] - at[0], at[2] - at[0])
    if not np.array_equal(level.at((rows * stride, columns * stride)), values):
        return None
    sizes = np.abs(np.concatenate([part.ravel() for part in (level.base, *_slopes(level))]))
    return None if ((sizes > 0) & (sizes < _MIN)).any() else level


_CORNER = (0, 0), (1, 0), (0, 1)


def _slopes(level: _Level) -> tuple[Array, Array]:
    return level.by_row, level.by_column
