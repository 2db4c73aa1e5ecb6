"""Reads and writes config.pbtxt, Triton's description of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.labels import LABELS_FILE
from fovea_engines.repository.triton_messages import model_config_messages
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidModel

CONFIG_FILE = "config.pbtxt"

_TYPES = {
    "bool": "TYPE_BOOL",
    "object": "TYPE_STRING",
    "bfloat16": "TYPE_BF16",
    **{
        f"{kind}{bits}": f"TYPE_{kind.upper()}{bits}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
}


def config_text(card: EngineCard) -> str:
    """Return the text form of Triton's `ModelConfig`; the same for the same card."""
    from google.protobuf import text_format

    pb = model_config_messages()

    batched = card.max_batch if all(spec.shape[0] == -1 for spec in card.inputs) else 0
    config = pb.ModelConfig(name=card.name, max_batch_size=batched)
    if card.backend == "onnxruntime":
        config.platform = "onnxruntime_onnx"
    config.backend = card.backend
    for spec in card.inputs:
        config.input.append(pb.ModelInput(**_tensor(pb, spec, batched)))
    for spec in card.outputs:
        output = pb.ModelOutput(**_tensor(pb, spec, batched))
        if card.labels is not None:
            output.label_filename = LABELS_FILE
        config.output.append(output)
    # Ultralytics' Triton client reads names, stride and task here, as a Python literal.
    config.parameters["metadata"].string_value = repr(card.metadata)
    text: str = text_format.MessageToString(config)
    return text


def read_config(path: Path) -> Any:
    """Read the `ModelConfig` message of a config.pbtxt; an empty one if the file is missing.

    Raises:
        InvalidModel: the file is not a model configuration.
    """
    from google.protobuf import text_format

    config = model_config_messages().ModelConfig()
    if path.is_file():
        try:
            # Windows editors write a byte order mark first.
            text_format.Parse(path.read_text(encoding="utf-8-sig"), config)
        except text_format.ParseError as error:
            reason = str(error).partition(" : ")[2].rstrip(".") or error
            raise InvalidModel(
                f"{path} is not a model configuration: line {error.GetLine()}, "
                f"column {error.GetColumn()}: {reason}"
            ) from error
        except UnicodeDecodeError as error:
            raise InvalidModel(f"{path} is not a model configuration: {error}") from error
    return config


def read_max_batch(path: Path) -> int:
    """Read `max_batch_size` of a config.pbtxt; 1 where it is missing or 0.

    Raises:
        InvalidModel: the file is not a model configuration.
    """
    return max(1, int(read_config(path).max_batch_size))


def tensor_spec(tensor: Any, max_batch: int) -> TensorSpec:
    """Convert a `ModelInput` or `ModelOutput` message; with `max_batch` add the batch dimension."""
    kind = model_config_messages().DataType.Name(tensor.data_type)
    dtype = next((dtype for dtype, name in _TYPES.items() if name == kind), kind)
    return TensorSpec(tensor.name, dtype, (-1, *tensor.dims) if max_batch else tuple(tensor.dims))


def _tensor(pb: Any, spec: TensorSpec, batched: int) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": pb.DataType.Value(_TYPES[spec.dtype]),
        "dims": spec.shape[1:] if batched else spec.shape,
    }
