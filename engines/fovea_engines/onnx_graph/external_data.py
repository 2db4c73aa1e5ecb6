"""Reads the weights that an ONNX model stores in separate files.

The onnx package rejects weight files that are symbolic or hard links. But the Hugging Face hub and
DVC store weights as links, so this module reads the files itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from fovea_preprocess.errors import InvalidModel


def read_external_data(proto: ModelProto, path: Path) -> list[TensorProto]:
    """Read the weights in separate files into the model, and return the tensors that were changed.

    Raises:
        InvalidModel: a file is missing, unreadable, too short, or outside the directory tree of the
            model.
    """
    tensors = [each for each in _tensors(proto) if each.data_location == TensorProto.EXTERNAL]
    for tensor in tensors:
        fields = {entry.key: entry.value for entry in tensor.external_data}
        tensor.raw_data = _part(path, tensor.name, fields)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return tensors


def _part(path: Path, name: str, fields: dict[str, str]) -> bytes:
    """Return the bytes of a tensor from its file.

    `fields` has the tensor's location, offset and length.
    """
    location = fields.get("location", "")
    file = _file(path, location)
    try:
        start, length = int(fields.get("offset") or 0), int(fields.get("length") or -1)
        with file.open("rb") as stream:
            stream.seek(start)
            data = stream.read(length)
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidModel(
            f"{path}: its external data {location} cannot be read ({error}): copy it again"
        ) from error
    if len(data) < length:
        raise InvalidModel(
            f"{path}: its external data {location} is too short for {name!r}: copy it again"
        )
    return data


def _file(path: Path, location: str) -> Path:
    """Return the path of a weight file in the model's directory.

    If the model is a link, the file may also be in the directory of the link's target.
    """
    inner = PurePosixPath(location.replace("\\", "/"))
    if not location or inner.is_absolute() or ".." in inner.parts:
        raise InvalidModel(
            f"{path}: its external data {location!r} is not in its folder: export it again"
        )
    folders = dict.fromkeys((path.absolute().parent, path.resolve().parent))
    for folder in folders:
        file = folder / inner
        if file.is_file():
            _check_place(path, file, folder)
            return file
    raise InvalidModel(
        f"{path}: its external data {location} is missing: copy it into the model's folder"
    )


def _check_place(path: Path, file: Path, folder: Path) -> None:
    """Check that a weight file is not a link to a file outside the model's directory tree.

    Otherwise a model from an untrusted source could copy any file of this machine into the engine.

    Raises:
        InvalidModel: the target is outside the model's directory tree and outside the stores of
            Hugging Face and DVC.
    """
    place = file.resolve()
    if not any(place.is_relative_to(tree.resolve()) for tree in (folder, *_stores(folder))):
        raise InvalidModel(
            f"{path}: its external data {file.name} is a link to {place}, which is not in the "
            f"model's folder: replace the link with the file (cp -L {file} COPY)"
        )


def _stores(folder: Path) -> Iterator[Path]:
    """Yield the directories where Hugging Face and DVC store the targets of links."""
    for around in (folder, *folder.parents):
        if around.name == "snapshots":
            yield around.parent / "blobs"
        yield around / ".dvc" / "cache"


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    yield from _list_of_graph(proto.graph)
    for function in proto.functions:
        yield from _list_of_nodes(function.node)


def _list_of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _list_of_nodes(graph.node)


def _list_of_nodes(nodes: Sequence[NodeProto]) -> Iterator[TensorProto]:
    for attribute in (each for node in nodes for each in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _list_of_graph(attribute.g)
        for graph in attribute.graphs:
            yield from _list_of_graph(graph)
