"""Defines the fields of config.pbtxt that Fovea uses, with their original names.

The source of the fields is Triton's model_config.proto. The server reads these fields, may change
them, and sends them to clients. `ModelConfig.source` has all other fields of a file, which the
server sends to clients unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fovea_engines.repository.model_config_scheduling import (
    EnsembleStep,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelSequenceBatching,
)
from fovea_preprocess.errors import InvalidModel

# Names of parameters of Triton's OpenVINO backend. In Fovea, all CPU backends use both parameters,
# and GPU backends use only NUM_STREAMS.
NUM_THREADS = "INFERENCE_NUM_THREADS"
NUM_STREAMS = "NUM_STREAMS"


@dataclass(frozen=True, slots=True)
class Latest:
    """Serve the `num_versions` newest versions; 0 means one version."""

    num_versions: int = 0


@dataclass(frozen=True, slots=True)
class All:
    """Serve all versions."""


@dataclass(frozen=True, slots=True)
class Specific:
    """Serve only these versions."""

    versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelVersionPolicy:
    """The version policy. At most one of the three fields is set."""

    latest: Latest | None = None
    all: All | None = None
    specific: Specific | None = None


def serve_only(version: int) -> ModelVersionPolicy:
    """Return the policy that serves only one version."""
    return ModelVersionPolicy(specific=Specific((version,)))


@dataclass(frozen=True, slots=True)
class ModelTensorReshape:
    """The shape of the engine's tensor without the batch dimension."""

    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigTensor:
    """An input or output.

    If the model has a batch dimension, `dims` does not include it. A length of -1 in `dims` means
    any length.
    """

    name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    reshape: ModelTensorReshape | None = None
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False

    @property
    def engine_dims(self) -> tuple[int, ...]:
        """Dimensions of the engine's tensor, without the batch dimension if the model has one."""
        return self.dims if self.reshape is None else self.reshape.shape


@dataclass(frozen=True, slots=True)
class ModelInput(ConfigTensor):
    """An input of a model."""

    format: str = "FORMAT_NONE"
    allow_ragged_batch: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelOutput(ConfigTensor):
    """An output of a model."""

    label_filename: str = ""


@dataclass(frozen=True, slots=True)
class PinnedMemoryBuffer:
    """Setting for page-locked host memory for transfers to a GPU."""

    enable: bool = False


@dataclass(frozen=True, slots=True)
class ModelOptimizationPolicy:
    """Settings of the runtime."""

    input_pinned_memory: PinnedMemoryBuffer | None = None
    output_pinned_memory: PinnedMemoryBuffer | None = None


@dataclass(frozen=True, slots=True)
class ModelInstanceGroup:
    """A group of instances of the model on one kind of device."""

    name: str = ""
    kind: str = "KIND_AUTO"
    count: int = 0
    gpus: tuple[int, ...] = ()
    passive: bool = False


@dataclass(frozen=True, slots=True)
class ModelParameter:
    """The value of an entry in `parameters`."""

    string_value: str = ""


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """An input of a warm-up request.

    Its values are zeros, random numbers, or the content of a file.
    """

    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    random_data: bool | None = None
    input_data_file: str | None = None


@dataclass(frozen=True, slots=True)
class ModelWarmup:
    """A request that runs `count` times before the model is ready."""

    name: str = ""
    batch_size: int = 0
    inputs: Mapping[str, WarmupInput] = field(default_factory=dict)
    count: int = 0


@dataclass(frozen=True, slots=True)
class ModelTransactionPolicy:
    """Setting for decoupled models, which may send any number of responses to a request."""

    decoupled: bool = False


@dataclass(frozen=True, slots=True)
class ModelResponseCache:
    """Setting for the use of the response cache."""

    enable: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of a model.

    Attributes:
        max_batch_size: largest batch size; 0 if `dims` of the tensors include the batch dimension.
        source: all fields of the file as JSON, including fields that Fovea does not use. Only
            `repository.config_pbtxt` reads it.
    """

    name: str = ""
    platform: str = ""
    backend: str = ""
    version_policy: ModelVersionPolicy | None = None
    max_batch_size: int = 0
    input: tuple[ModelInput, ...] = ()
    output: tuple[ModelOutput, ...] = ()
    optimization: ModelOptimizationPolicy | None = None
    dynamic_batching: ModelDynamicBatching | None = None
    sequence_batching: ModelSequenceBatching | None = None
    ensemble_scheduling: ModelEnsembling | None = None
    instance_group: tuple[ModelInstanceGroup, ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, ModelParameter] = field(default_factory=dict)
    model_warmup: tuple[ModelWarmup, ...] = ()
    model_transaction_policy: ModelTransactionPolicy = field(default_factory=ModelTransactionPolicy)
    response_cache: ModelResponseCache = field(default_factory=ModelResponseCache)
    source: str = "{}"

    @property
    def threads(self) -> int | None:
        """Number of CPU cores for all calls; None if the file does not set it, or sets AUTO."""
        return self._number(NUM_THREADS)

    @property
    def streams(self) -> int | None:
        """Number of parallel calls; None if the file does not set it, or sets AUTO."""
        return self._number(NUM_STREAMS)

    def _number(self, parameter: str) -> int | None:
        text = self.parameters.get(parameter, ModelParameter()).string_value
        if text in ("", "AUTO"):
            return None
        if not text.isdecimal() or int(text) < 1:
            raise InvalidModel(
                f"parameter {parameter} is '{text}' for model '{self.name}': it must be a whole "
                "number of 1 or more, or AUTO"
            )
        return int(text)

    @property
    def instances(self) -> int:
        """Number of instances in all groups; 0 if the file has no groups."""
        groups = (group for group in self.instance_group if not group.passive)
        return sum(group.count * max(1, len(group.gpus)) for group in groups)

    @property
    def has_tensors(self) -> bool:
        """True if the file lists both inputs and outputs.

        Otherwise they are read from the engine.
        """
        return bool(self.input) and bool(self.output)

    @property
    def steps(self) -> tuple[EnsembleStep, ...]:
        """Steps of an ensemble; empty for other models."""
        return () if self.ensemble_scheduling is None else self.ensemble_scheduling.step

    @property
    def composing(self) -> dict[str, set[int]]:
        """Mapping from each model of an ensemble to its versions; -1 means the default version."""
        models: dict[str, set[int]] = {}
        for step in self.steps:
            models.setdefault(step.model_name, set()).add(step.model_version)
        return models

    def served(self, versions: Sequence[int]) -> tuple[int, ...]:
        """Return the versions that the version policy selects.

        `versions` are the versions on disk in ascending order.

        Raises:
            InvalidModel: the policy selects no existing version.
        """
        policy = self.version_policy or ModelVersionPolicy()
        if policy.all is not None:
            chosen = tuple(versions)
        elif policy.specific is not None:
            chosen = tuple(v for v in versions if v in policy.specific.versions)
        else:
            latest = policy.latest or Latest()
            chosen = tuple(versions[-(latest.num_versions or 1) :])
        if not chosen:
            cure = f"put its files into a version's folder, {self.name}/1"
            if versions:
                cure = f"there are {', '.join(map(str, versions))}"
            raise InvalidModel(
                "at least one version must be available under the version policy of model "
                f"'{self.name}': {cure}"
            )
        return chosen
