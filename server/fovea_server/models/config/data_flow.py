"""Checks that every tensor of an ensemble is written once, and before it is read.

Texts and rules: `ValidateEnsembleSchedulingConfig` of Triton's model_config_utils.cc.
"""

from __future__ import annotations

from typing import Any

from fovea_preprocess.errors import InvalidModel


def check_data_flow(message: Any) -> None:
    """Follow the tensors from the inputs of an ensemble to its outputs.

    Args:
        message: its `ModelConfig`.

    Raises:
        InvalidModel: a tensor is written twice or never, in a cycle, or not used.
    """
    name, steps = message.name, message.ensemble_scheduling.step
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    written = _written(message, inputs)
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


def _written(message: Any, inputs: set[str]) -> set[str]:
    """Collect the tensors that the steps write; no two may write the same."""
    written: set[str] = set()
    for index, step in enumerate(message.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise InvalidModel(
                    f"must specify '{field}' in step {index} of ensemble '{message.name}'"
                )
        for tensor in sorted(step.output_map.values()):
            if tensor in inputs:
                raise InvalidModel(
                    f"ensemble input '{tensor}' can not appear in an output map for ensemble "
                    f"'{message.name}' step {index}"
                )
            if tensor in written:
                raise InvalidModel(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for "
                    f"ensemble '{message.name}' step {index}"
                )
            written.add(tensor)
    return written


def _ready(steps: Any, inputs: set[str]) -> set[str]:
    """Collect the tensors that exist after the last step."""
    ready, waiting = set(inputs), list(steps)
    while able := [step for step in waiting if ready.issuperset(step.input_map.values())]:
        waiting = [step for step in waiting if step not in able]
        ready.update(*(step.output_map.values() for step in able))
    return ready
