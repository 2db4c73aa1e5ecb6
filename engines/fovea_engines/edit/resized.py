"""Finds the values that replace a node's constants at another image size."""

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
_ANY_START = 2  # up to this, a position is not the end of a level: strided slices start at 0 or 1


class Unknown(Exception):
    """A constant of a node follows no known rule."""


@dataclass(frozen=True, slots=True, eq=False)
class Resizable:
    """Constants of a graph, and the shapes of its tensors at its own size and at another size.

    Attributes:
        constants: values by name.
        before: shapes at `size`, by name.
        now: shapes at `other`, by name.
        size: own size of the graph.
        other: another size.
    """

    constants: Mapping[str, Array]
    before: Mapping[str, _Shape]
    now: Mapping[str, _Shape]
    size: Size
    other: Size

    def shapes(self, name: str) -> tuple[_Shape, _Shape] | None:
        """Return the shapes of a computed tensor at both sizes.

        None for constants or unknown shapes.
        """
        before, now = self.before.get(name), self.now.get(name)
        if name in self.constants or before is None or now is None or len(before) != len(now):
            return None
        return None if -1 in before or -1 in now else (before, now)

    def length(self, before: int, now: int | None = None) -> Length | None:
        """Return the number of cells that is `before` at the own size, and `now` at the other."""
        return _lengths(self.size, self.other).get((before, now))

    def side(self, length: int) -> Length | None:
        """Return the rows or columns of a level that equal `length`.

        None if the choice is ambiguous.
        """
        found = [
            one
            for stride in _STRIDES
            for one in (Length((stride,), "rows"), Length((stride,), "columns"))
            if one.at(self.size) == length
        ]
        return found[0] if len(found) == 1 else None

    def sides(self, rows: int, columns: int) -> tuple[Length, Length] | None:
        """Return the rows and columns of the level with these numbers, or None."""
        for stride in _STRIDES:
            pair = Length((stride,), "rows"), Length((stride,), "columns")
            if (rows, columns) == tuple(each.at(self.size) for each in pair):
                return pair
        return None


@cache
def _lengths(size: Size, other: Size) -> Mapping[tuple[int, int | None], Length]:
    """Return numbers of cells by values at both sizes, or at the first; fewest levels first."""
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
    """Yield (index of an input, value that it needs) of a node.

    Raises:
        Unknown: a constant follows no known rule.
    """
    if (find := _RULES.get(node.op_type)) is not None:
        yield from find(grid, node)


def _describe_node(node: onnx.NodeProto) -> str:
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


def _reshape(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the target shape of a Reshape.

    A Reshape keeps the order of values, so dimensions with equal products belong together.
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
            # This is the batch in most files. It is copied from the input, so that another -1 is
            # possible.
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
    """Return rows and columns for neighbouring dimensions that are the sides of a level."""
    found: dict[int, Length | None] = {}
    for place, after in pairwise(places):
        if after == place + 1 and (sides := grid.sides(made[place], made[after])) is not None:
            found |= zip((place, after), sides, strict=True)
    return found


def _groups(taken: _Shape, made: _Shape) -> Iterator[tuple[slice, slice]]:
    """Yield the shortest runs of dimensions in both shapes with equal products."""
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
    """Return the dimensions of a run that depend on the size, each with its rule."""
    places = [place for place in range(outs.start, outs.stop) if made[place] != 1]
    if len(places) == 1:
        return {places[0]: grid.length(made[places[0]], product) or grid.side(made[places[0]])}
    sides = grid.sides(made[places[0]], made[places[1]]) if len(places) == 2 else None
    if sides is None:
        raise Unknown(f"{_describe_node(node)} makes {list(made)}, where {_NO_RULE}")
    return dict(zip(places, sides, strict=True))


def _elementwise(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the constants of an elementwise operator.

    A constant has as many values as the computed tensor beside it, or one.
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
    """Yield the constants that a Concat joins.

    A constant has the lengths of the tensors that it is joined with, except along the axis.
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
    """Yield the sizes of a Split in an axis that depends on the image size.

    Its parts are levels.
    """
    shapes = grid.shapes(node.input[0])
    sizes = grid.constants.get(node.input[1]) if len(node.input) > 1 else None
    axis = attribute(node, "axis", 0)
    if shapes is not None and sizes is not None and shapes[0][axis] != shapes[1][axis]:
        yield 1, Numbers(tuple(grid.length(n) or _raise(node, n) for n in sizes.tolist()))


def _slice(grid: Resizable, node: onnx.NodeProto) -> _Values:
    """Yield the starts and ends of a Slice in axes that depend on the image size.

    Such a position is the end of a level, or the end of the axis.
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
    """Yield the sizes of a Resize, which are the sides of a level."""
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
