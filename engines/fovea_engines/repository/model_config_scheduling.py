"""Defines the scheduling fields of config.pbtxt: batches, sequences and ensembles.

The source of the fields is Triton's model_config.proto: `ModelDynamicBatching`,
`ModelSequenceBatching` and `ModelEnsembling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelQueuePolicy:
    """The limits of a queue. A limit of 0 means no limit.

    After its timeout, a request is rejected (REJECT) or moved behind all other requests (DELAY). A
    request may set a shorter timeout if `allow_timeout_override` is True.
    """

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    @property
    def rejects(self) -> bool:
        """True if a request is rejected after its timeout."""
        return self.timeout_action == "REJECT"

    def timeout_us(self, asked_us: int) -> int:
        """Return the timeout of a request in microseconds.

        `asked_us` is the timeout in the request in microseconds, or 0 if the request has none.
        """
        if self.allow_timeout_override and 0 < asked_us < self.default_timeout_microseconds:
            return asked_us
        return self.default_timeout_microseconds


@dataclass(frozen=True, slots=True)
class ModelDynamicBatching:
    """Settings for batches that contain several requests."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: ModelQueuePolicy = field(default_factory=ModelQueuePolicy)
    priority_queue_policy: Mapping[int, ModelQueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StrategyDirect:
    """A strategy for sequences: each sequence keeps its slot in the batch."""

    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class StrategyOldest:
    """A strategy for sequences: a batch contains the oldest requests of all sequences."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """One meaning of a control input, e.g. the start of a sequence.

    The field of the input's element type has the values for false and true.
    """

    kind: str = "CONTROL_SEQUENCE_START"
    int32_false_true: tuple[int, ...] = ()
    fp32_false_true: tuple[float, ...] = ()
    bool_false_true: tuple[bool, ...] = ()
    data_type: str = "TYPE_INVALID"


@dataclass(frozen=True, slots=True)
class ControlInput:
    """An input that the server adds to the requests of a sequence."""

    name: str = ""
    control: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True)
class InitialState:
    """The first state of a sequence: the content of a file, or zeros."""

    data_file: str = ""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """An output that becomes an input of the next request in the sequence."""

    input_name: str = ""
    output_name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    initial_state: tuple[InitialState, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSequenceBatching:
    """Settings for sequences of requests. The requests of a sequence run in order."""

    direct: StrategyDirect | None = None
    oldest: StrategyOldest | None = None
    max_sequence_idle_microseconds: int = 0
    control_input: tuple[ControlInput, ...] = ()
    state: tuple[SequenceState, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One step of an ensemble, which runs a model.

    The maps connect the name of each tensor of the model with the name of a tensor of the ensemble.
    """

    model_name: str = ""
    model_version: int = 0
    input_map: Mapping[str, str] = field(default_factory=dict)
    output_map: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int | None:
        """The version to run; None means the default version of the model."""
        return self.model_version if self.model_version > 0 else None


@dataclass(frozen=True, slots=True)
class ModelEnsembling:
    """The steps of an ensemble, in any order."""

    step: tuple[EnsembleStep, ...] = ()
