"""Converts element types that ONNX Runtime's Python binding does not support.

Each class runs one call of a session whose inputs or outputs have such elements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fovea_engines.session import Array, TensorSpec
from fovea_preprocess.errors import InferenceFailed

# `TensorProto.BFLOAT16` of onnx.proto.
_BFLOAT16 = 16


class StringCalls:
    """Converts strings: `bytes` outside, text inside, because the binding needs `str`.

    Normally it takes and returns UTF-8. If a call has other bytes, all its strings are passed and
    returned as Latin-1, one character per byte, so that moving, joining and comparing them still
    works.

    Args:
        session: ONNX Runtime's session.
        names: names of its outputs.
    """

    def __init__(self, session: Any, names: Sequence[str]) -> None:
        self._session = session
        self._names = names

    def __call__(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Run one batch."""
        try:
            return self._call(feeds, "utf-8")
        except UnicodeDecodeError:
            return self._call(feeds, "latin-1")

    def _call(self, feeds: Mapping[str, Array], encoding: str) -> list[Array]:
        given = {
            name: _mapped(lambda element: element.decode(encoding), array)
            if array.dtype == object
            else array
            for name, array in feeds.items()
        }
        found = self._session.run(self._names, given)
        try:
            return [
                _mapped(lambda element: element.encode(encoding), array)
                if array.dtype == object
                else array
                for array in found
            ]
        except UnicodeEncodeError as error:
            raise InferenceFailed(
                f"the model mixes text of its own with strings that are not UTF-8: {error}; "
                "send UTF-8"
            ) from error


class BFloat16Calls:
    """Handles bfloat16, which numpy lacks, with ml_dtypes; nothing is converted.

    Args:
        session: ONNX Runtime's session.
        outputs: its outputs.
    """

    def __init__(self, session: Any, outputs: Sequence[TensorSpec]) -> None:
        self._session = session
        self._outputs = outputs

    def __call__(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Run one batch."""
        values = {name: _value(array) for name, array in feeds.items()}
        names = [spec.name for spec in self._outputs]
        found = self._session.run_with_ort_values(names, values)
        return [_array(spec, value) for spec, value in zip(self._outputs, found, strict=True)]


def _mapped(convert: Any, array: Array) -> Array:
    converted = np.empty(array.size, dtype=object)
    converted[:] = [convert(element) for element in array.ravel().tolist()]
    return converted.reshape(array.shape)


def _value(array: Array) -> Any:
    from onnxruntime import OrtValue

    if array.dtype.name != "bfloat16":
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _BFLOAT16)


def _array(spec: TensorSpec, value: Any) -> Array:
    if spec.dtype != "bfloat16":
        array: Array = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    if not size:
        return np.empty(value.shape(), spec.numpy_dtype)
    memory = (ctypes.c_char * size).from_address(value.data_ptr())
    # Copied, because the memory is freed with the value.
    return np.frombuffer(memory, spec.numpy_dtype).reshape(value.shape()).copy()
