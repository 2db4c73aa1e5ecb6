"""Completes a model's configuration from its engine, as Triton's backends do.

Sources: `AutoCompleteConfig` of Triton's onnxruntime.cc, `NormalizeInstanceGroup` of
model_config_utils.cc.
"""

from __future__ import annotations

import logging
from typing import Any

from fovea_engines.backends.registry import get_backend
from fovea_engines.engine import Engine
from fovea_engines.repository.public import public_metadata
from fovea_engines.repository.triton_messages import model_config_messages
from fovea_engines.session import TensorSpec
from fovea_preprocess.errors import InvalidModel
from fovea_server.models.config.config import ModelConfig, add_defaults
from fovea_server.models.config.config_check import check_config
from fovea_server.tensors.datatypes import NAMES, config_name

log = logging.getLogger(__name__)


def complete(config: ModelConfig, engine: Engine, *, fill_in: bool = True) -> Any:
    """Build the complete `ModelConfig` message of a version.

    Args:
        config: the model's configuration.
        engine: of the version, open.
        fill_in: take missing fields from the engine; otherwise they are required.

    Raises:
        InvalidModel: the configuration does not fit the engine.
    """
    message = model_config_messages().ModelConfig()
    message.CopyFrom(config.message)
    message.backend = message.backend or engine.card.backend
    platform = get_backend(engine.card.backend).platform
    if not message.platform:
        message.platform = platform
    elif platform and message.platform != platform:
        raise InvalidModel(
            f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}"
        )
    if not message.default_model_filename:
        message.default_model_filename = next(iter(engine.card.files))
    if fill_in:
        if not config.has_tensors:
            _fill_in_tensors(message, engine)
        if engine.card.metadata and "metadata" not in message.parameters:
            # Ultralytics' client reads names, stride and task from here, as a Python literal.
            metadata = repr(public_metadata(engine.card.metadata))
            message.parameters["metadata"].string_value = metadata
        # Of an engine without a card it is not known.
        if engine.card.created is not None and "precision" not in message.parameters:
            message.parameters["precision"].string_value = engine.card.precision
    _add_instances(message, engine.card.backend)
    add_defaults(message)
    check_config(message, message.name)
    return message


def _fill_in_tensors(message: Any, engine: Engine) -> None:
    session = engine.session
    batched = all(spec.shape[:1] == (-1,) for spec in (*session.inputs, *session.outputs))
    if batched and session.max_batch:
        message.max_batch_size = message.max_batch_size or session.max_batch
        if message.max_batch_size > 1 and message.WhichOneof("scheduling_choice") is None:
            message.dynamic_batching.SetInParent()
    elif message.max_batch_size and session.max_batch != message.max_batch_size:
        raise InvalidModel(
            f"autofill failed for model '{message.name}': model does not support batching while "
            "non-zero max_batch_size is specified"
        )
    controls = {control.name for control in message.sequence_batching.control_input}
    rows = message.max_batch_size > 0
    if not message.input:
        for spec in session.inputs:
            if spec.name not in controls:
                _describe(message.input.add(), spec, rows)
    if not message.output:
        for spec in session.outputs:
            _describe(message.output.add(), spec, rows)


def _describe(tensor: Any, spec: TensorSpec, rows: bool) -> None:
    kind = config_name(NAMES[spec.numpy_dtype])
    tensor.name = spec.name
    tensor.data_type = model_config_messages().DataType.Value(kind)
    dims = spec.shape[1:] if rows else spec.shape
    tensor.dims.extend(dims or (1,))
    if not dims and rows:
        tensor.reshape.SetInParent()


def _add_instances(message: Any, backend: str) -> None:
    groups = message.instance_group
    kinds = model_config_messages().ModelInstanceGroup
    on_gpu = get_backend(backend).on_gpu
    if not groups:
        groups.add(name=message.name)
    for index, group in enumerate(groups):
        group.name = group.name or f"{message.name}_{index}"
        group.count = max(1, group.count)
        if on_gpu and group.kind in (kinds.KIND_AUTO, kinds.KIND_GPU):
            group.kind = kinds.KIND_GPU
            if not group.gpus:
                group.gpus.append(0)
        elif group.kind != kinds.KIND_MODEL:
            if group.kind == kinds.KIND_GPU:
                log.warning("model %s: %s runs on the CPU", message.name, backend)
            group.kind = kinds.KIND_CPU
            del group.gpus[:]
