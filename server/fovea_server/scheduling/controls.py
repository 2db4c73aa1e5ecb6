"""The control and state inputs of a sequence model, which the server adds.

Source: `ControlInput` and `State` of `ModelSequenceBatching` in model_config.proto.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fovea_engines.repository.triton_messages import model_config_messages
from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidRequest, UnsupportedModel
from fovea_server.scheduling.job import Outputs
from fovea_server.tensors.datatypes import NUMPY, protocol_name
from fovea_server.tensors.messages import InferRequest

Maker = Callable[[InferRequest], Array]


class Controls:
    """Makes START, END, READY and CORRID, under the names in the configuration.

    Args:
        sequence_batching: that part of the `ModelConfig` message.
        batched: the model has a batch dimension.

    Raises:
        UnsupportedModel: a control has no values.
    """

    def __init__(self, sequence_batching: Any, *, batched: bool) -> None:
        shape = (1, 1) if batched else (1,)
        self._makers: dict[str, Maker] = {
            tensor.name: _maker(tensor.name, control, shape)
            for tensor in sequence_batching.control_input
            for control in tensor.control
        }

    def feeds(self, request: InferRequest) -> dict[str, Array]:
        """Make the control inputs of one request.

        Raises:
            InvalidRequest: the sequence id is a string, and the model takes a number.
        """
        return {name: make(request) for name, make in self._makers.items()}


class States:
    """Carries states from one request of a sequence to the next.

    Args:
        sequence_batching: that part of the `ModelConfig` message.
        batched: the model has a batch dimension.

    Raises:
        UnsupportedModel: a sequence begins with a state from a file.
    """

    def __init__(self, sequence_batching: Any, *, batched: bool) -> None:
        lead = (1,) if batched else ()
        self._states = sequence_batching.state
        self._zeros: dict[str, Array] = {}
        for state in self._states:
            if any(initial.data_file for initial in state.initial_state):
                raise UnsupportedModel(
                    f"state '{state.input_name}' begins with a file; only zero_data is served"
                )
            sizes = [1 if size < 0 else size for size in state.dims]
            self._zeros[state.input_name] = np.zeros(
                (*lead, *sizes), NUMPY[_datatype(state.data_type)]
            )

    def initial(self) -> dict[str, Array]:
        """Make the states of a new sequence, by input."""
        return dict(self._zeros)

    def after(self, outputs: Outputs) -> dict[str, Array]:
        """Read the states that the outputs of a request leave, by input."""
        return {state.input_name: outputs[state.output_name] for state in self._states}


def _maker(name: str, control: Any, shape: tuple[int, ...]) -> Maker:
    kinds = model_config_messages().ModelSequenceBatching.Control
    if control.kind == kinds.CONTROL_SEQUENCE_CORRID:
        number = _datatype(control.data_type)
        return lambda request: _correlation_id(name, request.sequence_id, number, shape)
    values = _false_true(control)
    if len(values) != 2:
        raise UnsupportedModel(f"control input '{name}' needs a value for false and one for true")
    no, yes = (np.full(shape, value) for value in values)
    if control.kind == kinds.CONTROL_SEQUENCE_START:
        return lambda request: yes if request.sequence_start else no
    if control.kind == kinds.CONTROL_SEQUENCE_END:
        return lambda request: yes if request.sequence_end else no
    # READY: there is a row only where there is a request.
    return lambda request: yes


def _false_true(control: Any) -> Array:
    if control.fp32_false_true:
        return np.array(control.fp32_false_true, np.float32)
    if control.bool_false_true:
        return np.array(control.bool_false_true, np.bool_)
    return np.array(control.int32_false_true, np.int32)


def _correlation_id(
    model_input: str, sequence: int | str, datatype: str, shape: tuple[int, ...]
) -> Array:
    if datatype == "BYTES":
        array = np.empty(shape, object)
        array.fill(str(sequence).encode())
        return array
    if isinstance(sequence, str):
        raise InvalidRequest(
            f"sequence '{sequence}' has a name, and input '{model_input}' of the model takes the "
            "number of its sequence: send a sequence_id that is a number"
        )
    return np.full(shape, sequence % 2**64, np.uint64).astype(NUMPY[datatype])


def _datatype(data_type: int) -> str:
    return protocol_name(model_config_messages().DataType.Name(data_type))
