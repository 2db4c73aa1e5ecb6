"""The scheduling fields of config.pbtxt: batches, sequences and ensembles.

Source: `ModelDynamicBatching`, `ModelSequenceBatching` and `ModelEnsembling` of model_config.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelQueuePolicy:
    """The limits of a queue; 0 for none.

    After its timeout a request is refused (REJECT), or moves behind all others (DELAY). A request
    may set a shorter timeout if the policy allows it.
    """

    timeout_action: Literal["REJECT", "DELAY"] = "REJECT"
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    @property
    def rejects(self) -> bool:
        """True if a request is refused after its timeout."""
        return self.timeout_action == "REJECT"

    def timeout_us(self, asked_us: int) -> int:
        """Compute the microseconds that a request may wait; `asked_us` is 0 if it sets none."""
        if self.allow_timeout_override and 0 < asked_us < self.default_timeout_microseconds:
            return asked_us
        return self.default_timeout_microseconds


@dataclass(frozen=True, slots=True)
class ModelDynamicBatching:
    """Requests share batches."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: ModelQueuePolicy = field(default_factory=ModelQueuePolicy)
    priority_queue_policy: Mapping[int, ModelQueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StrategyDirect:
    """A sequence keeps its slot of a batch."""

    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class StrategyOldest:
    """Batches are made of the oldest requests of all sequences."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """One meaning of a control input, and its values for false and true."""

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
    """The state that a sequence begins with; from a file, or zeros."""

    data_file: str = ""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """An output that is the input of the sequence's next request."""

    input_name: str = ""
    output_name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    initial_state: tuple[InitialState, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSequenceBatching:
    """Requests of a sequence run in order."""

    direct: StrategyDirect | None = None
    oldest: StrategyOldest | None = None
    max_sequence_idle_microseconds: int = 0
    control_input: tuple[ControlInput, ...] = ()
    state: tuple[SequenceState, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble; the maps lead from its tensors to those of the ensemble."""

    model_name: str = ""
    model_version: int = 0
    input_map: Mapping[str, str] = field(default_factory=dict)
    output_map: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int | None:
        """The version to run; None for the one that the model's policy prefers."""
        return self.model_version if self.model_version > 0 else None


@dataclass(frozen=True, slots=True)
class ModelEnsembling:
    """The steps of an ensemble, in any order."""

    step: tuple[EnsembleStep, ...] = ()
