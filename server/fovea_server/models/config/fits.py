"""Checks that a configuration and an engine describe the same tensors.

Texts: `CompareDimsSupported` and `CheckAllowedModelInput` of Triton's backend and core.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fovea_engines.repository.triton_messages import model_config_messages
from fovea_engines.session import Session, TensorSpec
from fovea_preprocess.errors import InvalidModel
from fovea_server.tensors.datatypes import NAMES, config_name


def check_fit(message: Any, session: Session) -> None:
    """Check a complete configuration against its engine.

    Raises:
        InvalidModel: the engine lacks a tensor or has another type or shape of it, or it needs
            one that no client could send.
    """
    optional = {spec.name: spec for spec in getattr(session, "optional_inputs", ())}
    inputs = {spec.name: spec for spec in session.inputs}
    outputs = {spec.name: spec for spec in session.outputs}
    for tensor in message.input:
        _check(message, tensor, inputs | optional, "input")
    for tensor in message.output:
        _check(message, tensor, outputs, "output")
    fed = {tensor.name for tensor in message.input}
    fed |= {control.name for control in message.sequence_batching.control_input}
    fed |= {state.input_name for state in message.sequence_batching.state}
    if missing := [name for name in inputs if name not in fed]:
        raise InvalidModel(
            f"failed to load model '{message.name}', configuration expects {len(message.input)} "
            f"inputs, model provides {len(inputs)}: it says nothing of {', '.join(missing)}"
        )


def _check(message: Any, tensor: Any, known: dict[str, TensorSpec], kind: str) -> None:
    if tensor.name not in known:
        raise InvalidModel(
            f"unexpected inference {kind} '{tensor.name}', allowed {kind}s are: "
            f"{', '.join(sorted(known))}"
        )
    spec = known[tensor.name]
    said = model_config_messages().DataType.Name(tensor.data_type)
    has = config_name(NAMES[spec.numpy_dtype])
    if said != has:
        raise InvalidModel(
            f"unexpected datatype {has} for inference {kind} '{tensor.name}', expecting {said}"
        )
    _check_shape(message, tensor, spec)


def _check_shape(message: Any, tensor: Any, spec: TensorSpec) -> None:
    dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    head = f"model '{message.name}', tensor '{tensor.name}': "
    if not message.max_batch_size:
        # A scalar is declared as [1].
        if _same(dims, spec.shape) or (not spec.shape and list(dims) == [1]):
            return
        raise InvalidModel(
            f"{head}the model expects {len(spec.shape)} dimensions (shape {_text(spec.shape)}) but "
            f"the model configuration specifies {len(dims)} dimensions (shape {_text(dims)})"
        )
    # One row at a time is a batch of 1, in a graph with a fixed or a variable batch.
    rows = (-1, 1) if message.max_batch_size == 1 else (-1,)
    if not spec.shape or spec.shape[0] not in rows:
        raise InvalidModel(
            f"{head}for the model to support batching the shape should have at least 1 dimension "
            f"and the first dimension must be -1; but shape expected by the model is "
            f"{_text(spec.shape)}"
        )
    if not _same(dims, spec.shape[1:]):
        raise InvalidModel(
            f"{head}the model expects {len(spec.shape)} dimensions (shape {_text(spec.shape)}) but "
            f"the model configuration specifies {len(dims) + 1} dimensions (an initial batch "
            "dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            f"complete shape {_text((-1, *dims))}). NOTE: Setting a non-zero max_batch_size in the "
            "model config requires a batch dimension to be prepended to each input shape. If you "
            "want to specify the full shape including the batch dim in your input dims config, try "
            "setting max_batch_size to zero. See the model configuration docs for more info on "
            "max_batch_size."
        )


def _same(said: Sequence[int], has: Sequence[int]) -> bool:
    return len(said) == len(has) and all(
        a == b or -1 in (a, b) for a, b in zip(said, has, strict=True)
    )


def _text(shape: Iterable[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
