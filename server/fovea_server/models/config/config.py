"""Reads the configuration of a model, and completes it with Triton's defaults and its engine.

Sources: `AutoCompleteConfig` of Triton's onnxruntime.cc, `NormalizeInstanceGroup` of
model_config_utils.cc; `CompareDimsSupported` and `CheckAllowedModelInput` of its backend and core.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import orjson

from fovea_engines.backends.registry import get_backend
from fovea_engines.engine import Engine
from fovea_engines.repository.config_pbtxt import (
    CONFIG_FILE,
    DATA_TYPES,
    make_tensor_fields,
    parse_config,
    read_config,
)
from fovea_engines.repository.model_config import (
    ConfigTensor,
    Latest,
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelOutput,
    ModelParameter,
    ModelTensorReshape,
    ModelVersionPolicy,
    PinnedMemoryBuffer,
)
from fovea_engines.repository.model_config_scheduling import (
    ModelDynamicBatching,
    ModelSequenceBatching,
    StrategyOldest,
)
from fovea_engines.repository.public import public_metadata
from fovea_engines.session import Session, TensorSpec
from fovea_preprocess.errors import InvalidModel
from fovea_server.models.config.config_check import check_config
from fovea_server.tensors.check import BATCH_NOTE
from fovea_server.tensors.image_outputs import image_outputs
from fovea_server.tensors.signature import shape_text, shapes_match

log = logging.getLogger(__name__)

_CONFIGS_FOLDER = "configs"
_IDLE_US = 1_000_000
_Batching = TypeVar("_Batching", ModelDynamicBatching, StrategyOldest)


def load_config(
    folder: Path,
    name: str,
    *,
    override: str | None = None,
    variant: str = "",
    required: bool = False,
    renamed: bool = False,
) -> ModelConfig:
    """Read and check the configuration of a model.

    Args:
        folder: directory of the model.
        name: name of the model.
        override: JSON that replaces the file.
        variant: name of a variant; configs/VARIANT.pbtxt replaces config.pbtxt if it exists.
        required: raise an error if the file is missing.
        renamed: ignore the name in the file, because the server serves the model under `name`.

    Raises:
        InvalidModel: the configuration is missing or cannot be used.
    """
    if override is not None:
        config = parse_config(override)
    else:
        path = folder / _CONFIGS_FOLDER / f"{variant}.pbtxt"
        if not variant or not path.is_file():
            path = folder / CONFIG_FILE
        if required and not path.is_file():
            raise InvalidModel(
                f"{path} is missing, but --disable-auto-complete-config requires it: write the file"
            )
        config = read_config(path)
        config = replace(config, name=name) if renamed else config
    config = fill_in_defaults(replace(_fill_in_dims(config), name=config.name or name))
    check_config(config, name)
    return config


def _fill_in_dims(config: ModelConfig) -> ModelConfig:
    """Give outputs without dims the shape of one value per row: older builds omitted such dims."""
    one = ((1,), ModelTensorReshape() if config.max_batch_size else None)
    outputs = [
        each if each.dims or each.reshape else replace(each, dims=one[0], reshape=one[1])
        for each in config.output
    ]
    return replace(config, output=tuple(outputs))


def fill_in_defaults(config: ModelConfig) -> ModelConfig:
    """Fill in Triton's defaults that do not depend on the engine."""
    rows = config.max_batch_size
    if config.version_policy in (None, ModelVersionPolicy()):
        config = replace(config, version_policy=ModelVersionPolicy(latest=Latest(1)))
    if (batching := config.dynamic_batching) is not None:
        config = replace(config, dynamic_batching=_prefer_full_batches(batching, rows))
    if (sequences := config.sequence_batching) is not None:
        idle_us = sequences.max_sequence_idle_microseconds or _IDLE_US
        oldest = sequences.oldest and _prefer_full_batches(sequences.oldest, rows)
        sequences = replace(sequences, max_sequence_idle_microseconds=idle_us, oldest=oldest)
        config = replace(config, sequence_batching=sequences)
    if config.ensemble_scheduling is None and config.platform != "ensemble":
        known = config.optimization or ModelOptimizationPolicy()
        pinned = PinnedMemoryBuffer(enable=True)
        optimization = ModelOptimizationPolicy(
            known.input_pinned_memory or pinned, known.output_pinned_memory or pinned
        )
        config = replace(config, optimization=optimization)
    return config


def _prefer_full_batches(batching: _Batching, rows: int) -> _Batching:
    if batching.preferred_batch_size or rows <= 0:
        return batching
    return replace(batching, preferred_batch_size=(rows,))


def complete_config(config: ModelConfig, engine: Engine, *, fill_in: bool = True) -> ModelConfig:
    """Complete the configuration of a version from its engine.

    If `fill_in` is False, the configuration must list all tensors itself.

    Raises:
        InvalidModel: the configuration does not fit the engine.
    """
    card = engine.card
    config = replace(
        config,
        backend=config.backend or card.backend,
        default_model_filename=config.default_model_filename or next(iter(card.files)),
    )
    platform = get_backend(card.backend).platform
    if not config.platform:
        config = replace(config, platform=platform)
    elif platform and config.platform != platform:
        raise InvalidModel(
            f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}: "
            f'{config.default_model_filename} is of platform "{platform}"; write that into '
            "config.pbtxt, or remove the line"
        )
    if fill_in:
        if not config.has_tensors:
            config = _fill_in_tensors(config, engine.session)
        config = replace(config, parameters=_parameters(engine) | dict(config.parameters))
    config = fill_in_defaults(replace(config, instance_group=_instances(config, card.backend)))
    check_config(config, config.name)
    _check_fit(config, engine.session)
    return config


def _parameters(engine: Engine) -> dict[str, ModelParameter]:
    parameters = {}
    if engine.card.metadata:
        # The client of Ultralytics reads class names, stride and task from this Python literal.
        parameters["metadata"] = ModelParameter(repr(public_metadata(engine.card.metadata)))
    # The precision of an engine is known only from its card, so it is set only if there is a card.
    if engine.card.created is not None:
        parameters["precision"] = ModelParameter(engine.card.precision)
    if engine.head is not None and engine.preprocessor is not None:
        listed = orjson.dumps(image_outputs(engine.head)).decode()
        parameters["image_outputs"] = ModelParameter(listed)
    return parameters


def _fill_in_tensors(config: ModelConfig, session: Session) -> ModelConfig:
    batched = all(spec.shape[:1] == (-1,) for spec in (*session.inputs, *session.outputs))
    if batched and session.max_batch:
        config = replace(config, max_batch_size=config.max_batch_size or session.max_batch)
        unscheduled = config.sequence_batching is None and config.dynamic_batching is None
        if config.max_batch_size > 1 and unscheduled:
            config = replace(config, dynamic_batching=ModelDynamicBatching())
    elif config.max_batch_size and session.max_batch != config.max_batch_size:
        raise InvalidModel(
            f"autofill failed for model '{config.name}': model does not support batching while "
            "non-zero max_batch_size is specified"
        )
    sequences = config.sequence_batching or ModelSequenceBatching()
    controls = {control.name for control in sequences.control_input}
    rows = config.max_batch_size > 0
    inputs = tuple(
        ModelInput(**make_tensor_fields(spec, batched=rows))
        for spec in session.inputs
        if spec.name not in controls
    )
    outputs = tuple(
        ModelOutput(**make_tensor_fields(spec, batched=rows)) for spec in session.outputs
    )
    return replace(config, input=config.input or inputs, output=config.output or outputs)


def _instances(config: ModelConfig, backend: str) -> tuple[ModelInstanceGroup, ...]:
    groups = config.instance_group or (ModelInstanceGroup(config.name),)
    return tuple(
        _complete_instance(config.name, index, group, backend) for index, group in enumerate(groups)
    )


def _complete_instance(
    model: str, index: int, group: ModelInstanceGroup, backend: str
) -> ModelInstanceGroup:
    group = replace(group, name=group.name or f"{model}_{index}", count=max(1, group.count))
    if get_backend(backend).on_gpu and group.kind in ("KIND_AUTO", "KIND_GPU"):
        return replace(group, kind="KIND_GPU", gpus=group.gpus or (0,))
    if group.kind == "KIND_MODEL":
        return group
    if group.kind == "KIND_GPU":
        log.warning("model %s: %s runs on the CPU", model, backend)
    return replace(group, kind="KIND_CPU", gpus=())


def _check_fit(config: ModelConfig, session: Session) -> None:
    """Compare the tensors of a complete configuration with the tensors of its engine.

    Raises:
        InvalidModel: a tensor is missing, or has another type or shape.
    """
    sequences = config.sequence_batching or ModelSequenceBatching()
    optional = {spec.name: spec for spec in getattr(session, "optional_inputs", ())}
    inputs = {spec.name: spec for spec in session.inputs}
    outputs = {spec.name: spec for spec in session.outputs}
    for given in config.input:
        _check_tensor(config, given, inputs | optional, "input")
    for returned in config.output:
        _check_tensor(config, returned, outputs, "output")
    fed = {given.name for given in config.input}
    fed |= {control.name for control in sequences.control_input}
    fed |= {state.input_name for state in sequences.state}
    if missing := [name for name in inputs if name not in fed]:
        raise InvalidModel(
            f"failed to load model '{config.name}', configuration expects {len(config.input)} "
            f"inputs, model provides {len(inputs)}: it does not list {', '.join(missing)}"
        )


def _check_tensor(
    config: ModelConfig, tensor: ConfigTensor, known: Mapping[str, TensorSpec], kind: str
) -> None:
    if tensor.name not in known:
        raise InvalidModel(
            f"unexpected inference {kind} '{tensor.name}', allowed {kind}s are: "
            f"{', '.join(sorted(known))}"
        )
    spec = known[tensor.name]
    has = DATA_TYPES[spec.dtype]
    if tensor.data_type != has:
        raise InvalidModel(
            f"unexpected datatype {has} for inference {kind} '{tensor.name}', expecting "
            f"{tensor.data_type}"
        )
    _check_shape(config, tensor, spec)


def _check_shape(config: ModelConfig, tensor: ConfigTensor, spec: TensorSpec) -> None:
    dims = tensor.engine_dims
    head = f"model '{config.name}', tensor '{tensor.name}': "
    expects = f"the model expects {len(spec.shape)} dimensions (shape {shape_text(spec.shape)})"
    if not config.max_batch_size:
        # A configuration declares a scalar with dims [1].
        if shapes_match(dims, spec.shape) or (not spec.shape and dims == (1,)):
            return
        raise InvalidModel(
            f"{head}{expects} but the model configuration specifies {len(dims)} dimensions (shape "
            f"{shape_text(dims)})"
        )
    # If max_batch_size is 1, the batch dimension of the graph may be fixed at 1 or variable.
    rows = (-1, 1) if config.max_batch_size == 1 else (-1,)
    if not spec.shape or spec.shape[0] not in rows:
        raise InvalidModel(
            f"{head}for the model to support batching the shape should have at least 1 dimension "
            f"and the first dimension must be -1; but shape expected by the model is "
            f"{shape_text(spec.shape)}"
        )
    if not shapes_match(dims, spec.shape[1:]):
        raise InvalidModel(
            f"{head}{expects} but the model configuration specifies {len(dims) + 1} dimensions (an "
            "initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            f"shape, making complete shape {shape_text((-1, *dims))}). {BATCH_NOTE}"
        )
