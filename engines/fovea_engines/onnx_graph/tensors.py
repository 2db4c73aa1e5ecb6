"""Reads the inputs, outputs and metadata of ONNX models."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidModel, UnsupportedModel

if TYPE_CHECKING:
    import onnx

_METADATA_PROPS = 14
_KEY, _VALUE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


_PAGE = "a web page instead of the model, perhaps a login page: download the model file"
# First bytes of files that users often have in place of the model, in lower case -> a description
# of the file, and instructions to get the model.
_IN_ITS_PLACE = {
    b"version https://git-lfs.github.com/spec/": (
        "a Git LFS pointer instead of the model: fetch the model with `git lfs pull`"
    ),
    b"<!doctype html": _PAGE,
    b"<html": _PAGE,
}


def explain_file(path: Path) -> str | None:
    """Return a description of a file that users often have in place of the model.

    The description includes instructions to get the model. If the file does not begin like one of
    these files, return None.
    """
    with path.open("rb") as file:
        start = file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return next((what for first, what in _IN_ITS_PLACE.items() if start.startswith(first)), None)


def graph_inputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs of the graph, without the weights that older exporters list as inputs.

    Raises:
        UnsupportedModel: an input is not a tensor.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(_spec(value) for value in model.graph.input if value.name not in weights)


def graph_outputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the outputs of the graph.

    Raises:
        UnsupportedModel: an output is not a tensor.
    """
    return tuple(map(_spec, model.graph.output))


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's operator set, or 0 if the model does not declare it."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)


def metadata_of(model: onnx.ModelProto) -> dict[str, str]:
    """Return the metadata of the exporter: pairs of key and value."""
    return {entry.key: entry.value for entry in model.metadata_props}


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    from onnx.helper import tensor_dtype_to_np_dtype

    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value")
        raise UnsupportedModel(f"{value.name!r} is a {kind}; only tensors are supported")
    tensor = value.type.tensor_type
    # A dimension with a name, without any value, or with the value 0 is dynamic.
    shape = tuple(dim.dim_value or -1 for dim in tensor.shape.dim)
    return TensorSpec(value.name, tensor_dtype_to_np_dtype(tensor.elem_type).name, shape)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the exporter's metadata from a file, without its weights and without the onnx package.

    A server that opens a plain Triton repository needs the metadata at startup. The import of onnx
    would take longer than loading the model. The wire format is described at
    protobuf.dev/programming-guides/encoding. The field numbers are in onnx.proto, in the messages
    ModelProto and StringStringEntryProto.

    Raises:
        InvalidModel: the file is not an ONNX model.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            entries = [
                dict(_fields(BytesIO(e), len(e), {_KEY, _VALUE}))
                for _, e in _fields(file, size, {_METADATA_PROPS})
            ]
        return {e.get(_KEY, b"").decode(): e.get(_VALUE, b"").decode() for e in entries}
    except ValueError as error:
        raise InvalidModel(f"{path} is not an ONNX model ({error})") from error


def _fields(stream: BinaryIO, size: int, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the length-delimited fields whose number is in `wanted`.

    Other fields are skipped without reading them.
    """
    while stream.tell() < size:
        number, kind = divmod(_varint(stream), 8)
        if kind == _VARINT:
            _varint(stream)
            continue
        if kind not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"unknown wire type {kind} at byte {stream.tell()}")
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind) or _varint(stream)
        if stream.tell() + length > size:
            raise ValueError(f"the file ends inside field {number}")
        if kind == _BYTES and number in wanted:
            yield number, stream.read(length)
        else:
            stream.seek(length, 1)


def _varint(stream: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            raise ValueError("the file ends inside a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError(f"a number over 64 bits at byte {stream.tell()}")
