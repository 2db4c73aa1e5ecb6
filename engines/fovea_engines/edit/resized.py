"""Finds the values that must replace the constants of a node at other image sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

import onnx

from fovea_engines.edit.cells import Length, Numbers, Size, Sized, flat_table, plane_table
from fovea_engines.onnx_graph.wiring import attribute
from fovea_engines.session import Array

_Shape: TypeAlias = tuple[int, ...]
_Values: TypeAlias = Iterator[tuple[int, Sized]]

_STRIDES = (2, 4, 8, 16, 32, 64, 128)
_MAX_LEVELS = 5
_MAX_ANCHORS = 9
_ELEMENTWISE = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mod", "Where", "Less", "Greater", "Equal")
)


_NO_RULE = "no rule is known for the size of the image"
# Positions up to this number are not the end of a level: slices with steps start at 0 or 1.
_ANY_START = 2


class Unknown(Exception):
    """An error: a constant of a node follows no known rule."""


@dataclass(frozen=True, slots=True, eq=False)
class Resizable:
    """The constants of a graph, and the shapes of its tensors at two image sizes.

    Attributes:
        constants: name of each constant -> its value.
        before: name of each tensor -> its shape at `size`.
        now: name of each tensor -> its shape at `other`.
        size: image size in the file.
        other: image size that differs from `size`.
    """

    constants: Mapping[str, Array]
    before: Mapping[str, _Shape]
    now: Mapping[str, _Shape]
    size: Size
    other: Size

    def shapes(self, name: str) -> tuple[_Shape, _Shape] | None:
        """Return the shapes of a computed tensor at `size` and at `other`.

        If the tensor is a constant, or a shape is unknown, return None.
        """
        before, now = self.before.get(name), self.now.get(name)
        if name in self.constants or before is None or now is None or len(before) != len(now):
            return None
        return None if -1 in before or -1 in now else (before, now)

    def length(self, before: int, now: int | None = None) -> Length | None:
        """Return the rule for a number of cells: `before` at `size`, and `now` at `other`.

        If `now` is None, only `before` must fit. If no rule fits, return None.
        """
        return _lengths(self.size, self.other).get((before, now))

    def side(self, length: int) -> Length | None:
        """Return the rule for a number of rows or columns that is `length` at `size`.

        If no rule or several rules fit, return None.
        """
        found = [
            one
            for stride in _STRIDES
            for one in (Length((stride,), "rows"), Length((stride,), "columns"))
            if one.at(self.size) == length
        ]
        return found[0] if len(found) == 1 else None

    def sides(self, rows: int, columns: int) -> tuple[Length, Length] | None:
        """Return the rules for the rows and columns of the level that has these numbers at `size`.

        If no level has them, return None.
        """
        for stride in _STRIDES:
            pair = Length((stride,), "rows"), Length((stride,), "columns")
            if (rows, columns) == tuple(each.at(self.size) for each in pair):
                return pair
        return None


@cache
def _lengths(size: Size, other: Size) -> Mapping[tuple[int, int | None], Length]:
    """Return the rules for numbers of cells.

    Returns:
        (number of cells at `size`, number at `other` or None) -> rule with the fewest levels that
        fits.
    """
    found: dict[tuple[int, int | None], Length] = {}
    for count, times, first in product(
        range(1, _MAX_LEVELS + 1), range(1, _MAX_ANCHORS + 1), range(len(_STRIDES))
    ):
        length = Length(_STRIDES[first : first + count], times=times)
        before, now = length.at(size), length.at(other)
        found.setdefault((before, now), length)
        found.setdefault((before, None), length)
    return found


def node_values(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the index and the new value of each input of a node that must be replaced.

    Raises:
        Unknown: a constant follows no known rule.
    """
    if (find := _RULES.get(node.op_type)) is not None:
        yield from find(grid, node)


def _describe_node(node: onnx.NodeProto) -> str:
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


def _reshape(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the new target shape of a Reshape.

    A Reshape keeps the order of values. So consecutive dimensions of the input correspond to
    consecutive dimensions of the output with the same product.
    """
    target, shapes = grid.constants.get(node.input[1]), grid.shapes(node.input[0])
    made = grid.before.get(node.output[0], ())
    if target is None or shapes is None or -1 in made or shapes[0] == shapes[1]:
        return
    taken, now = shapes
    follow: dict[int, Length | None] = {}
    for ins, outs in _groups(taken, made):
        if taken[ins] != now[ins]:
            follow |= _find_following(grid, node, made, outs, prod(now[ins]))
    entries: list[int | Length] = [int(entry) for entry in target]
    left = [place for place in follow if entries[place] not in (0, -1)]
    for place, entry in enumerate(entries if left else ()):
        if entry == -1 and place not in follow:
            # In most files, this dimension is the batch. Copy its length from the input (0),
            # because a shape can have only one -1, and another dimension may need it.
            same = taken[: place + 1] == made[: place + 1] and not attribute(node, "allowzero", 0)
            entries[place] = 0 if same else made[place]
    if len(left) == 1 and -1 not in entries:
        entries[left[0]] = -1
    else:
        follow |= _pairs(grid, made, [place for place in left if follow[place] is None])
        for place in left:
            entries[place] = follow[place] or _raise(node, made[place])
    if entries != target.tolist():
        yield 1, Numbers(tuple(entries))


def _pairs(grid: Resizable, made: _Shape, places: Sequence[int]) -> dict[int, Length | None]:
    """Return rules for neighbouring dimensions that are the rows and columns of a level."""
    found: dict[int, Length | None] = {}
    for place, after in pairwise(places):
        if after == place + 1 and (sides := grid.sides(made[place], made[after])) is not None:
            found |= zip((place, after), sides, strict=True)
    return found


def _groups(taken: _Shape, made: _Shape) -> Iterator[tuple[slice, slice]]:
    """Yield the corresponding runs of dimensions in both shapes.

    Each pair of runs has the same product, and is as short as possible.
    """
    i = j = 0
    while i < len(taken) and j < len(made):
        first, start = i, j
        one, other = taken[i], made[j]
        i, j = i + 1, j + 1
        while one != other and (i if one < other else j) < len(taken if one < other else made):
            if one < other:
                one, i = one * taken[i], i + 1
            else:
                other, j = other * made[j], j + 1
        yield slice(first, i), slice(start, j)


def _find_following(
    grid: Resizable, node: onnx.NodeProto, made: _Shape, outs: slice, product: int
) -> dict[int, Length | None]:
    """Return the dimensions of a run that depend on the image size.

    Returns:
        Index of each such dimension -> its rule, or None if no rule is known.
    """
    places = [place for place in range(outs.start, outs.stop) if made[place] != 1]
    if len(places) == 1:
        return {places[0]: grid.length(made[places[0]], product) or grid.side(made[places[0]])}
    sides = grid.sides(made[places[0]], made[places[1]]) if len(places) == 2 else None
    if sides is None:
        raise Unknown(f"{_describe_node(node)} makes {list(made)}, where {_NO_RULE}")
    return dict(zip(places, sides, strict=True))


def _elementwise(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the new constants of an elementwise operator.

    Along each axis, a constant has the length of the computed operand, or the length 1.
    """
    for slot, name in enumerate(node.input):
        for other in node.input if name in grid.constants else ():
            shapes = grid.shapes(other)
            if shapes is not None and shapes[0] != shapes[1]:
                values = grid.constants[name]
                changed = [
                    axis
                    for axis in range(-min(values.ndim, len(shapes[0])), 0)
                    if shapes[0][axis] != shapes[1][axis] and values.shape[axis] != 1
                ]
                now = [shapes[1][axis] for axis in changed]
                if changed:
                    yield slot, _table(grid, node, values, [values.ndim + a for a in changed], now)
                    break


def _concat(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the new constants that a Concat joins with computed tensors.

    A constant has the same lengths as the computed tensors, except along the axis of the Concat.
    """
    computed = next((s for name in node.input if (s := grid.shapes(name)) is not None), None)
    if computed is None:
        return
    before, now = computed
    along = attribute(node, "axis", 0) % len(before)
    changed = [i for i in range(len(before)) if before[i] != now[i] and i != along]
    for slot, name in enumerate(node.input):
        if changed and name in grid.constants:
            values = grid.constants[name]
            yield slot, _table(grid, node, values, changed, [now[i] for i in changed])


def _table(
    grid: Resizable, node: onnx.NodeProto, values: Array, axes: Sequence[int], now: Sequence[int]
) -> Sized:
    table = None
    lengths = [values.shape[axis] for axis in axes]
    if len(axes) == 2 and axes[1] == axes[0] + 1 and (pair := grid.sides(*lengths)) is not None:
        table = plane_table(values, axes[0], pair[0].strides[0])
    elif len(axes) == 1 and (length := grid.length(lengths[0], now[0])) is not None:
        table = flat_table(values, axes[0], length, grid.size)
    if table is None:
        raise Unknown(
            f"{_describe_node(node)} has a constant {list(values.shape)} whose values {_NO_RULE}"
        )
    return table


def _split(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the new sizes of a Split along an axis that depends on the image size.

    Each part of the Split is a level.
    """
    shapes = grid.shapes(node.input[0])
    sizes = grid.constants.get(node.input[1]) if len(node.input) > 1 else None
    axis = attribute(node, "axis", 0)
    if shapes is not None and sizes is not None and shapes[0][axis] != shapes[1][axis]:
        yield 1, Numbers(tuple(grid.length(n) or _raise(node, n) for n in sizes.tolist()))


def _slice(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the new starts and ends of a Slice along axes that depend on the image size.

    A start or end is the end of a level, the end of the axis, or a small constant.
    """
    shapes = grid.shapes(node.input[0])
    given = [grid.constants.get(name) for name in node.input[1:4]]
    if shapes is None or any(one is None for one in given):
        return
    starts, ends, *rest = (one.tolist() for one in given if one is not None)
    axes = rest[0] if rest else range(len(starts))
    for slot, places in ((1, starts), (2, ends)):
        entries: list[int | Length] = []
        for place, axis in zip(places, axes, strict=True):
            length = shapes[0][axis]
            fixed = length == shapes[1][axis] or not _ANY_START < place < length
            entries.append(place if fixed else grid.length(place) or _raise(node, place))
        if any(isinstance(entry, Length) for entry in entries):
            yield slot, Numbers(tuple(entries))


def _resize(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the new sizes of a Resize, which are the rows and columns of a level."""
    sizes = grid.constants.get(node.input[3]) if len(node.input) > 3 else None
    shapes = grid.shapes(node.input[0])
    if sizes is None or shapes is None or shapes[0] == shapes[1]:
        return
    changed = [i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]
    entries: list[int | Length] = [int(n) for n in sizes]
    pair = grid.sides(*(int(sizes[i]) for i in changed)) if len(changed) == 2 else None
    if pair is None:
        raise Unknown(f"{_describe_node(node)} makes {entries}, where {_NO_RULE}")
    for place, side in zip(changed, pair, strict=True):
        entries[place] = side
    yield 3, Numbers(tuple(entries))


def _raise(node: onnx.NodeProto, length: int) -> Length:
    raise Unknown(f"{_describe_node(node)} has a length of {length}, and {_NO_RULE}")


_RULES: Mapping[str, Callable[[Resizable, onnx.NodeProto], _Values]] = {
    "Reshape": _reshape,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Resize": _resize,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
}
