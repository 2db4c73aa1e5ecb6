"""Checks the input arrays of a call before the runtime gets them, to report readable errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InferenceFailed


def check_feeds(
    inputs: Sequence[TensorSpec],
    max_batch: int,
    feeds: Mapping[str, Array],
    optional: Iterable[TensorSpec] = (),
) -> None:
    """Check that the arrays of one call fit the inputs of the model.

    This takes about a microsecond.

    Args:
        inputs: required inputs of the model.
        max_batch: largest batch size; 0 if the model has no batch dimension.
        feeds: name of each input -> its array.
        optional: inputs that may be left out.

    Raises:
        InferenceFailed: an array is missing, unknown or has a wrong type, shape or memory layout.
            The message names the input and the required form.
    """
    if len(feeds) == len(inputs) and _plainly_right(inputs, max_batch, feeds):
        return
    required = {spec.name: spec for spec in inputs}
    known = required | {spec.name: spec for spec in optional}
    if missing := required.keys() - feeds.keys():
        raise InferenceFailed(f"input {_names(missing)} is missing")
    if unknown := feeds.keys() - known.keys():
        raise InferenceFailed(
            f"the model has no input {_names(unknown)}; its inputs are {_names(known)}"
        )
    for name, array in feeds.items():
        _check_array(known[name], array)
    if max_batch:
        _check_rows({len(feeds[name]) for name in required}, max_batch)


def _plainly_right(
    inputs: Sequence[TensorSpec], max_batch: int, feeds: Mapping[str, Array]
) -> bool:
    """Return whether the arrays are certainly valid.

    This fast check has no error messages. If it returns False, the caller runs the complete checks.
    """
    rows = -1
    for spec in inputs:
        array = feeds.get(spec.name)
        if array is None or array.dtype != spec.numpy_dtype or not array.flags.c_contiguous:
            return False
        shape, wanted = array.shape, spec.shape
        if len(shape) != len(wanted):
            return False
        if max_batch:
            if not shape or not 1 <= shape[0] <= max_batch or rows not in (-1, shape[0]):
                return False
            rows = shape[0]
        # Usually only the first dimension is dynamic. Then this comparison of tuples suffices, and
        # the slower loop is not needed.
        if shape[1:] != wanted[1:] or wanted[:1] not in ((-1,), shape[:1]):
            for want, have in zip(wanted, shape, strict=True):
                if want not in (-1, have):
                    return False
    return True


def _check_array(spec: TensorSpec, array: Array) -> None:
    if array.dtype != spec.numpy_dtype:
        raise InferenceFailed(
            f"input {spec.name!r} has the type {array.dtype.name}; it must be {spec.dtype}"
        )
    fits = array.ndim == len(spec.shape) and all(
        want in (-1, have) for want, have in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise InferenceFailed(
            f"input {spec.name!r} has shape {list(array.shape)}; it must be {list(spec.shape)}, "
            "where -1 stands for any size"
        )
    if not array.flags.c_contiguous:
        raise InferenceFailed(
            f"input {spec.name!r} is not C-contiguous: convert it with numpy.ascontiguousarray"
        )


def _check_rows(rows: set[int], max_batch: int) -> None:
    if len(rows) > 1:
        raise InferenceFailed(f"inputs have different batch sizes: {sorted(rows)}")
    if rows and not 1 <= min(rows) <= max_batch:
        raise InferenceFailed(
            f"the batch has {min(rows)} rows; it must have from 1 to {max_batch}: split it"
        )


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))
