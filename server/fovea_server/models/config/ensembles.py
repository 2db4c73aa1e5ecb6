"""Checks that the models of an ensemble fit together.

Texts: `ValidateEnsembleConfig` of Triton's ensemble_utils.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fovea_engines.repository.triton_messages import model_config_messages
from fovea_preprocess.errors import InvalidModel


@dataclass(frozen=True, slots=True)
class _StepTensor:
    """A tensor between steps, as one of the models declares it."""

    model: str
    kind: int
    dims: tuple[int, ...]
    batched: bool

    @property
    def full(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batched else self.dims


def check_ensemble(ensemble: Any, config_of: Callable[[str, int | None], Any]) -> None:
    """Compare the inputs and outputs of an ensemble's steps.

    Args:
        ensemble: its `ModelConfig` message.
        config_of: gives the complete message of a model, by name and version.

    Raises:
        InvalidModel: they do not fit.
    """
    tensors = _of(ensemble, ensemble.input) | _of(ensemble, ensemble.output)
    for step in ensemble.ensemble_scheduling.step:
        model = config_of(step.model_name, max(0, step.model_version) or None)
        if 0 < model.max_batch_size < ensemble.max_batch_size:
            raise InvalidModel(
                f"ensemble {ensemble.name} allows maximum batch size {ensemble.max_batch_size}, "
                f"but it contains model {step.model_name} which only allows maximum batch size to "
                f"be {model.max_batch_size}"
            )
        _check_inputs(ensemble.name, step, model)
        _check_outputs(ensemble.name, step, model)
        _join(ensemble.name, tensors, step.input_map, _of(model, model.input))
        _join(ensemble.name, tensors, step.output_map, _of(model, model.output))


def _of(config: Any, tensors: Sequence[Any]) -> dict[str, _StepTensor]:
    return {
        tensor.name: _StepTensor(
            config.name,
            tensor.data_type,
            tuple(tensor.reshape.shape)
            if tensor.HasField("reshape") and config.platform == "ensemble"
            else tuple(tensor.dims),
            config.max_batch_size > 0,
        )
        for tensor in tensors
    }


def _check_inputs(ensemble: str, step: Any, model: Any) -> None:
    known = {tensor.name: tensor.optional for tensor in model.input}
    for name, tensor in step.input_map.items():
        if name not in known:
            raise InvalidModel(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing "
                f"input {name} in model {step.model_name}"
            )
    for name, optional in known.items():
        if not optional and name not in step.input_map:
            raise InvalidModel(
                f"in ensemble {ensemble}, input {name} in model {step.model_name} is not mapped "
                "to any ensemble tensors"
            )


def _check_outputs(ensemble: str, step: Any, model: Any) -> None:
    known = {tensor.name for tensor in model.output}
    for name, tensor in step.output_map.items():
        if name not in known:
            raise InvalidModel(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing "
                f"output {name} in model {step.model_name}"
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
            kinds = model_config_messages().DataType
            raise InvalidModel(
                f"{about}data type: {kinds.Name(here.kind)} is inferred from model {here.model} "
                f"while {kinds.Name(there.kind)} is inferred from model {there.model}"
            )
        if not (_same(here.dims, there.dims) or _same(here.full, there.full)):
            raise InvalidModel(
                f"{about}shape: {_text(here.full)} is inferred from model {here.model} while "
                f"{_text(there.full)} is inferred from model {there.model}"
            )


def _same(a: Sequence[int], b: Sequence[int]) -> bool:
    return len(a) == len(b) and all(m == n or -1 in (m, n) for m, n in zip(a, b, strict=True))


def _text(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"
