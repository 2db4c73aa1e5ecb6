"""Loads an ONNX file with its external weights, and checks it before a build."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx.helper import make_opsetid

from fovea_engines.heads.efficient_nms import expand_efficient_nms
from fovea_engines.onnx_graph.external_data import read_external_data
from fovea_engines.onnx_graph.tensors import explain_file
from fovea_preprocess.errors import InvalidModel, NotFound

_DOMAIN = "tensorrt.plugins"
# Prefixes of the operator domains that ONNX Runtime adds to ONNX.
_RUNTIMES = ("com.microsoft", "com.ms.")

_TENSORFLOW = (
    "a TensorFlow file: convert it with `python -m tf2onnx.convert --saved-model FOLDER --output "
    "model.onnx`"
)
_EXPORT = "export it to ONNX with the tool that trained it"
_SOURCE = "give the ONNX file that it was made from"
# Suffix of another file format -> its description, and instructions to get an ONNX file.
_OTHERS = {
    ".pt": f"a PyTorch file: {_EXPORT}, as in `yolo export model={{path}} format=onnx`",
    ".pth": f"a PyTorch file: {_EXPORT}, or with torch.onnx.export",
    ".safetensors": f"a file of weights without the model: {_EXPORT}",
    ".pb": _TENSORFLOW,
    ".h5": _TENSORFLOW,
    ".keras": _TENSORFLOW,
    ".tflite": (
        "a TensorFlow Lite file: convert it with `python -m tf2onnx.convert --tflite {path} "
        "--output model.onnx`"
    ),
    ".pdmodel": "a PaddlePaddle file: convert it with paddle2onnx",
    ".mlmodel": f"a Core ML file: {_SOURCE}",
    ".mlpackage": f"a Core ML file: {_SOURCE}",
    ".xml": f"an OpenVINO engine: {_SOURCE}",
    ".engine": f"a TensorRT engine, which only runs on one kind of GPU: {_SOURCE}",
    ".plan": f"a TensorRT engine, which only runs on one kind of GPU: {_SOURCE}",
}


def plugin_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of operators that neither ONNX nor ONNX Runtime defines, sorted."""
    return tuple(sorted({node.op_type for node in _find_unknown(model)}))


def mark_plugins(model: onnx.ModelProto) -> None:
    """Move unknown operators from ONNX's domain to a domain for TensorRT's plugins, in place.

    ONNX's checker and converters reject unknown operators in ONNX's own domain.
    """
    found = [node for node in _find_unknown(model) if node.domain in ("", "ai.onnx")]
    for node in found:
        node.domain = _DOMAIN
    if found:
        model.opset_import.append(make_opsetid(_DOMAIN, 1))


def _find_unknown(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    functions = {(function.domain, function.name) for function in model.functions}
    for node in model.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        known = (
            onnx.defs.has(node.op_type, domain)
            or (node.domain, node.op_type) in functions
            or domain.startswith(_RUNTIMES)
        )
        if not known:
            yield node


@dataclass(frozen=True, slots=True, eq=False)
class SourceModel:
    """A loaded model as its exporter wrote it, except for TensorRT's own operators.

    TensorRT's NMS is replaced by standard operators. Other unknown operators are moved to a domain
    for plugins.

    Attributes:
        path: path of the ONNX file.
        proto: parsed model with all weights.
        sha256: SHA-256 of the file and its external data, in hexadecimal.
    """

    path: Path
    proto: onnx.ModelProto
    sha256: str


def load(path: Path) -> SourceModel:
    """Read an ONNX file and its external data.

    Raises:
        NotFound: the file does not exist.
        UnsupportedModel: the model contains TensorRT's NMS with settings that standard operators
            cannot express.
        InvalidModel: the file is empty, truncated or not valid ONNX, or its external data is
            missing or too short.
    """
    from google.protobuf.message import DecodeError

    data = _read(path)
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise InvalidModel(
            _other(path)
            or (
                f"{path} is damaged or not an ONNX model (it cannot be parsed): copy or export it "
                "again"
            )
        ) from error
    if not proto.HasField("graph") or not proto.graph.node:
        raise InvalidModel(
            _other(path) or f"{path} is not an ONNX model (it has no graph): export it again"
        )
    expand_efficient_nms(proto)
    mark_plugins(proto)
    digest = hashlib.sha256(data)
    external = read_external_data(proto, path)
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise InvalidModel(
            f"{path} is not valid ONNX ({_first_line(error)}): export it again"
        ) from error
    for tensor in external:
        digest.update(tensor.raw_data)
    return SourceModel(path, proto, digest.hexdigest())


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise InvalidModel(
            _other(path) or f"{path} is a folder: give the .onnx file in it"
        ) from error
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from error
    if (other := explain_file(path)) is not None:
        raise InvalidModel(f"{path} is {other}")
    if not data:
        raise InvalidModel(f"{path} is empty: copy or export it again")
    if data.startswith(b"PK\x03\x04") or path.suffix in (".pt", ".pth"):
        raise InvalidModel(
            _other(path)
            or (
                f"{path} is a PyTorch file or another zip archive: {_EXPORT}, as in `yolo export "
                f"model={path.stem}.pt format=onnx`"
            )
        )
    return data


def _other(path: Path) -> str | None:
    """Return a description of a file of another format, or None if its suffix is unknown."""
    if (path / "saved_model.pb").exists():
        return f"{path} is {_TENSORFLOW.replace('FOLDER', str(path))}"
    other = _OTHERS.get(path.suffix.lower())
    return other and f"{path} is {other.format(path=path)}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
