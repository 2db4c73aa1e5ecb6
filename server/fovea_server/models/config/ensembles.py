"""Checks the tensors between the steps of an ensemble.

Source of the messages and rules: `ValidateEnsembleConfig` of Triton's ensemble_utils.cc, and
`ValidateEnsembleSchedulingConfig` of its model_config_utils.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fovea_engines.repository.model_config import ConfigTensor, ModelConfig
from fovea_engines.repository.model_config_scheduling import EnsembleStep
from fovea_preprocess.errors import InvalidModel
from fovea_server.tensors.signature import shape_text, shapes_match


@dataclass(frozen=True, slots=True)
class _StepTensor:
    """A tensor between two steps, with the type and shape that one of the models declares."""

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
    """Raise InvalidModel if an ensemble does not fit the configurations of its models."""
    if (fault := next(_faults(ensemble, config_of), None)) is not None:
        raise InvalidModel(fault)


def _faults(
    ensemble: ModelConfig, config_of: Callable[[str, int | None], ModelConfig]
) -> Iterator[str]:
    tensors = _collect_tensors(ensemble, ensemble.input) | _collect_tensors(
        ensemble, ensemble.output
    )
    for step in ensemble.steps:
        model = config_of(step.model_name, step.version)
        if 0 < model.max_batch_size < ensemble.max_batch_size:
            yield (
                f"ensemble {ensemble.name} allows maximum batch size {ensemble.max_batch_size}, "
                f"but it contains model {step.model_name} which only allows maximum batch size to "
                f"be {model.max_batch_size}"
            )
        yield from _map_faults(ensemble.name, step, model)
        yield from _join(
            ensemble.name, tensors, step.input_map, _collect_tensors(model, model.input)
        )
        yield from _join(
            ensemble.name, tensors, step.output_map, _collect_tensors(model, model.output)
        )


def _collect_tensors(
    config: ModelConfig, tensors: Sequence[ConfigTensor]
) -> dict[str, _StepTensor]:
    return {
        tensor.name: _StepTensor(
            config.name,
            tensor.data_type,
            tensor.engine_dims if config.platform == "ensemble" else tensor.dims,
            config.max_batch_size > 0,
        )
        for tensor in tensors
    }


def _map_faults(ensemble: str, step: EnsembleStep, model: ModelConfig) -> Iterator[str]:
    about, where = f"in ensemble {ensemble}, ", f"in model {step.model_name}"
    for name in sorted(step.input_map.keys() - {tensor.name for tensor in model.input}):
        tensor = step.input_map[name]
        yield f"{about}ensemble tensor {tensor} is mapping to non-existing input {name} {where}"
    for given in model.input:
        if not given.optional and given.name not in step.input_map:
            yield f"{about}input {given.name} {where} is not mapped to any ensemble tensors"
    for name in sorted(step.output_map.keys() - {tensor.name for tensor in model.output}):
        tensor = step.output_map[name]
        yield f"{about}ensemble tensor {tensor} is mapped from non-existing output {name} {where}"


def _join(
    ensemble: str,
    tensors: dict[str, _StepTensor],
    names: Mapping[str, str],
    own: dict[str, _StepTensor],
) -> Iterator[str]:
    """Add the tensors of a step to `tensors`; yield a fault if a type or shape contradicts it."""
    for name, tensor in names.items():
        here, there = tensors.setdefault(tensor, own[name]), own[name]
        if here.kind != there.kind:
            what, known, new = "data type", here.kind, there.kind
        elif not (shapes_match(here.dims, there.dims) or shapes_match(here.full, there.full)):
            what, known, new = "shape", shape_text(here.full), shape_text(there.full)
        else:
            continue
        yield (
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent {what}: {known} is "
            f"inferred from model {here.model} while {new} is inferred from model {there.model}"
        )


def data_flow_faults(config: ModelConfig) -> Iterator[str]:
    """Yield faults in the flow of tensors between steps.

    A tensor may be unused, never written, written twice, or part of a cycle.
    """
    name, steps = config.name, config.steps
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    written = yield from _collect_written(config, inputs)
    read = {tensor for step in steps for tensor in step.input_map.values()}
    if unread := sorted(inputs - read):
        yield f"ensemble input '{unread[0]}' for ensemble {name}' is not used"
    if unknown := sorted(outputs - read - written):
        yield f"ensemble output '{unknown[0]}' for ensemble {name}' is not used"
    ready = _ready(steps, inputs)
    if late := sorted(outputs - ready):
        yield f"output '{late[0]}' for ensemble '{name}' is not written"
    # The tensors that never become ready are part of a cycle, or no step writes them.
    if unused := sorted((read | written) - (ready & read) - outputs):
        yield f"ensemble tensor '{unused[0]}' is unused in ensemble '{name}'"


def _collect_written(config: ModelConfig, inputs: set[str]) -> Generator[str, None, set[str]]:
    """Collect the names of the tensors that the steps write.

    Yield a fault if a step lacks a field, writes an input of the ensemble, or writes a tensor that
    another step writes.
    """
    written: set[str] = set()
    for index, step in enumerate(config.steps):
        where = f"for ensemble '{config.name}' step {index}"
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield f"must specify '{field}' in step {index} of ensemble '{config.name}'"
        for tensor in sorted(step.output_map.values()):
            if tensor in inputs:
                yield f"ensemble input '{tensor}' can not appear in an output map {where}"
            if tensor in written:
                yield f"ensemble tensor '{tensor}' can appear in an output map only once {where}"
            written.add(tensor)
    return written


def _ready(steps: Sequence[EnsembleStep], inputs: set[str]) -> set[str]:
    """Return the names of the tensors that exist after all steps that can run have run."""
    ready, waiting = set(inputs), list(steps)
    while able := [step for step in waiting if ready.issuperset(step.input_map.values())]:
        waiting = [step for step in waiting if step not in able]
        ready.update(*(step.output_map.values() for step in able))
    return ready
