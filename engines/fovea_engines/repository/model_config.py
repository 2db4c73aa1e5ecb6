"""The fields of config.pbtxt that Fovea uses, under their original names.

Source: model_config.proto of Triton. The server reads the fields in this file, may change them, and
sends them to clients. All other fields are only passed through in `ModelConfig.source`.
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

# Parameters of Triton's OpenVINO backend. In Fovea they work for all backends.
NUM_THREADS = "INFERENCE_NUM_THREADS"
NUM_STREAMS = "NUM_STREAMS"


@dataclass(frozen=True, slots=True)
class Latest:
    """Serve the newest versions; 0 means 1."""

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
    """The version policy; at most one of the three fields is set."""

    latest: Latest | None = None
    all: All | None = None
    specific: Specific | None = None


def serve_only(version: int) -> ModelVersionPolicy:
    """Return the policy that serves only one version."""
    return ModelVersionPolicy(specific=Specific((version,)))


@dataclass(frozen=True, slots=True)
class ModelTensorReshape:
    """Shape of the engine's tensor without the batch dimension."""

    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigTensor:
    """An input or output; `dims` excludes the batch dimension, and -1 means any size."""

    name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    reshape: ModelTensorReshape | None = None
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False

    @property
    def engine_dims(self) -> tuple[int, ...]:
        """Dimensions of the engine's tensor without the batch dimension."""
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
    """Use of pinned memory for transfers to a GPU."""

    enable: bool = False


@dataclass(frozen=True, slots=True)
class ModelOptimizationPolicy:
    """Settings of the runtime."""

    input_pinned_memory: PinnedMemoryBuffer | None = None
    output_pinned_memory: PinnedMemoryBuffer | None = None


@dataclass(frozen=True, slots=True)
class ModelInstanceGroup:
    """Instances of the model on one kind of device."""

    name: str = ""
    kind: str = "KIND_AUTO"
    count: int = 0
    gpus: tuple[int, ...] = ()
    passive: bool = False


@dataclass(frozen=True, slots=True)
class ModelParameter:
    """The value of a free parameter."""

    string_value: str = ""


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """An input of a warm-up request: zeros, random numbers, or a file."""

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
    """In a decoupled model, a request may have any number of responses."""

    decoupled: bool = False


@dataclass(frozen=True, slots=True)
class ModelResponseCache:
    """Use of the response cache for the model."""

    enable: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of a model.

    Attributes:
        max_batch_size: largest batch size; 0 if tensors have no batch dimension.
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
        """Number of CPU cores for all calls; None if the file has no number, or AUTO."""
        return self._number(NUM_THREADS)

    @property
    def streams(self) -> int | None:
        """Number of parallel calls; None if the file has no number, or AUTO."""
        return self._number(NUM_STREAMS)

    def _number(self, parameter: str) -> int | None:
        text = self.parameters.get(parameter, ModelParameter()).string_value
        if text in ("", "AUTO"):
            return None
        if not text.isdecimal() or int(text) < 1:
            raise InvalidModel(
                f"parameter {parameter} is '{text}' for model '{self.name}': it must be a number "
                "from 1 up, or AUTO"
            )
        return int(text)

    @property
    def instances(self) -> int:
        """Number of instances in all groups; 0 if the file has none."""
        groups = (group for group in self.instance_group if not group.passive)
        return sum(group.count * max(1, len(group.gpus)) for group in groups)

    @property
    def has_tensors(self) -> bool:
        """True if the file lists inputs and outputs, so they are not read from the engine."""
        return bool(self.input) and bool(self.output)

    @property
    def steps(self) -> tuple[EnsembleStep, ...]:
        """Steps of an ensemble; empty for other models."""
        return () if self.ensemble_scheduling is None else self.ensemble_scheduling.step

    @property
    def composing(self) -> dict[str, set[int]]:
        """Models of an ensemble -> their versions; -1 means any version."""
        models: dict[str, set[int]] = {}
        for step in self.steps:
            models.setdefault(step.model_name, set()).add(step.model_version)
        return models

    def served(self, versions: Sequence[int]) -> tuple[int, ...]:
        """Return the versions to serve among the ascending versions on disk.

        Raises:
            InvalidModel: the policy selects none of them.
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
