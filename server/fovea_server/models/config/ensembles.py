"""Checks the tensors between the steps of an ensemble.

Texts and rules: `ValidateEnsembleConfig` of Triton's ensemble_utils.cc, and
`ValidateEnsembleSchedulingConfig` of its model_config_utils.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fovea_engines.repository.config_pbtxt import ConfigTensor, ModelConfig
from fovea_engines.repository.config_scheduling import EnsembleStep
from fovea_preprocess.errors import InvalidModel
from fovea_server.tensors.signature import shape_text, shapes_match


@dataclass(frozen=True, slots=True)
class _StepTensor:
    """A tensor between steps, as one of the models declares it."""

    model: str
    kind: str
    dims: tuple[int, ...]
    batched: bool

    @property
    def full(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batched else self.dims


def check_ensemble(
    ensemble: ModelConfig, config_of: Callable[[str, int | None], ModelConfig]
) -> None:
    """Compare the inputs and outputs of an ensemble's steps.

    Args:
        ensemble: the configuration.
        config_of: gives the complete configuration of a model, by name and version.

    Raises:
        InvalidModel: they do not fit.
    """
    tensors = _of(ensemble, ensemble.input) | _of(ensemble, ensemble.output)
    for step in ensemble.steps:
        model = config_of(step.model_name, step.version)
        if 0 < model.max_batch_size < ensemble.max_batch_size:
            raise InvalidModel(
                f"ensemble {ensemble.name} allows maximum batch size {ensemble.max_batch_size}, "
                f"but it contains model {step.model_name} which only allows maximum batch size to "
                f"be {model.max_batch_size}"
            )
        _check_maps(ensemble.name, step, model)
        _join(ensemble.name, tensors, step.input_map, _of(model, model.input))
        _join(ensemble.name, tensors, step.output_map, _of(model, model.output))


def _of(config: ModelConfig, tensors: Sequence[ConfigTensor]) -> dict[str, _StepTensor]:
    return {
        tensor.name: _StepTensor(
            config.name,
            tensor.data_type,
            tensor.engine_dims if config.platform == "ensemble" else tensor.dims,
            config.max_batch_size > 0,
        )
        for tensor in tensors
    }


def _check_maps(ensemble: str, step: EnsembleStep, model: ModelConfig) -> None:
    about = f"in ensemble {ensemble}, "
    where = f"in model {step.model_name}"
    for name in sorted(step.input_map.keys() - {tensor.name for tensor in model.input}):
        raise InvalidModel(
            f"{about}ensemble tensor {step.input_map[name]} is mapping to non-existing input "
            f"{name} {where}"
        )
    for tensor in model.input:
        if not tensor.optional and tensor.name not in step.input_map:
            raise InvalidModel(
                f"{about}input {tensor.name} {where} is not mapped to any ensemble tensors"
            )
    for name in sorted(step.output_map.keys() - {tensor.name for tensor in model.output}):
        raise InvalidModel(
            f"{about}ensemble tensor {step.output_map[name]} is mapped from non-existing output "
            f"{name} {where}"
        )


def _join(
    ensemble: str,
    tensors: dict[str, _StepTensor],
    names: Mapping[str, str],
    own: dict[str, _StepTensor],
) -> None:
    for name, tensor in names.items():
        here, there = tensors.setdefault(tensor, own[name]), own[name]
        about = f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent "
        if here.kind != there.kind:
            raise InvalidModel(
                f"{about}data type: {here.kind} is inferred from model {here.model} "
                f"while {there.kind} is inferred from model {there.model}"
            )
        if not (shapes_match(here.dims, there.dims) or shapes_match(here.full, there.full)):
            raise InvalidModel(
                f"{about}shape: {shape_text(here.full)} is inferred from model {here.model} while "
                f"{shape_text(there.full)} is inferred from model {there.model}"
            )


def check_data_flow(config: ModelConfig) -> None:
    """Follow the tensors from the inputs of an ensemble to its outputs.

    Raises:
        InvalidModel: a tensor is written twice or never, in a cycle, or not used.
    """
    name, steps = config.name, config.steps
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    written = _written(config, inputs)
    read = {tensor for step in steps for tensor in step.input_map.values()}
    if unread := sorted(inputs - read):
        raise InvalidModel(f"ensemble input '{unread[0]}' for ensemble {name}' is not used")
    if unknown := sorted(outputs - read - written):
        raise InvalidModel(f"ensemble output '{unknown[0]}' for ensemble {name}' is not used")
    ready = _ready(steps, inputs)
    if late := sorted(outputs - ready):
        raise InvalidModel(f"output '{late[0]}' for ensemble '{name}' is not written")
    # A tensor that never becomes ready is part of a cycle, or no step writes it.
    if unused := sorted((read | written) - (ready & read) - outputs):
        raise InvalidModel(f"ensemble tensor '{unused[0]}' is unused in ensemble '{name}'")


def _written(config: ModelConfig, inputs: set[str]) -> set[str]:
    """Collect the tensors that the steps write; no two may write the same."""
    written: set[str] = set()
    for index, step in enumerate(config.steps):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise InvalidModel(
                    f"must specify '{field}' in step {index} of ensemble '{config.name}'"
                )
        for tensor in sorted(step.output_map.values()):
            if tensor in inputs:
                raise InvalidModel(
                    f"ensemble input '{tensor}' can not appear in an output map for ensemble "
                    f"'{config.name}' step {index}"
                )
            if tensor in written:
                raise InvalidModel(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for "
                    f"ensemble '{config.name}' step {index}"
                )
            written.add(tensor)
    return written


def _ready(steps: Sequence[EnsembleStep], inputs: set[str]) -> set[str]:
    """Collect the tensors that exist after the last step."""
    ready, waiting = set(inputs), list(steps)
    while able := [step for step in waiting if ready.issuperset(step.input_map.values())]:
        waiting = [step for step in waiting if step not in able]
        ready.update(*(step.output_map.values() for step in able))
    return ready
