"""The /v1 documents about models, their statistics and the health of the server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fovea_engines.repository.card import EngineCard
from fovea_engines.repository.public import public_card
from fovea_preprocess.errors import ModelNotReady, NotFound
from fovea_preprocess.spec import PreprocessSpec
from fovea_server.dataplane.v2_documents import model_metadata
from fovea_server.models.model import ServedModel, State
from fovea_server.models.registry import Registry

_NOT_LOADED = "it is not loaded: load it with POST /v1/models/{name}/versions/{version}/load"
_NOT_BUILT = "the engine is not from `fovea build`: its directory has no card.json"


class Live(BaseModel):
    """Whether the process responds."""

    live: bool


class Ready(BaseModel):
    """Whether the server, or the model, accepts requests."""

    ready: bool


class ModelVersion(BaseModel):
    """One version of a model in the repository, loaded or not."""

    version: str
    state: State
    ready: bool
    reason: Annotated[
        str | None,
        Field(
            description=(
                "reason why the version is not ready, or why its last reload failed; otherwise null"
            )
        ),
    ]
    current: Annotated[
        bool, Field(description="true if this version answers requests without a version")
    ]


class ModelSummary(BaseModel):
    """One model of the list.

    Fields that are unknown before the model is ready are null until then.
    """

    # Every response contains all fields, so clients need not check whether a field is missing.
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    name: str
    version: str | None = Field(
        None,
        description=(
            "version that the other fields describe: the current version, or the newest "
            "version if no version can respond"
        ),
    )
    ready: bool
    reason: str | None = Field(
        description="reason why the version is not ready; null if it is ready"
    )
    versions: list[ModelVersion] = []
    task: str | None = Field(
        None,
        description='task of the model, e.g. "detect"; "tensors" if the outputs are not decoded',
    )
    accepts_images: bool = False
    backend: str | None = Field(None, description="backend of the engine; null for an ensemble")
    precision: str | None = Field(None, description="precision of the engine; null for an ensemble")
    label_count: int = Field(0, description="number of classes; 0 if the model has no labels")


class ModelList(BaseModel):
    """Every model that is served or failed to load, sorted by name."""

    models: list[ModelSummary]


class TensorMetadata(BaseModel):
    """An input or output of a model."""

    name: str
    datatype: Annotated[
        str, Field(description="data type by its name in the v2 protocol, e.g. FP32")
    ]
    shape: Annotated[
        list[int], Field(description="sizes of the dimensions; -1 for a variable size")
    ]


class Model(ModelSummary):
    """All properties of one version of a model."""

    max_batch_size: Annotated[
        int, Field(description="largest batch size; 0 if the model has no batch dimension")
    ]
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    preprocess: Annotated[
        PreprocessSpec | None,
        Field(
            description=(
                "preprocessing that turns an image into the input; null if the model accepts no"
                " images"
            )
        ),
    ]
    labels: Annotated[list[str] | None, Field(description="class names by id")]
    card: Annotated[
        EngineCard | None, Field(description="record of the build of the engine by `fovea build`")
    ]
    card_reason: Annotated[str | None, Field(description="reason why the version has no card")]
    made_of: Annotated[
        list[str],
        Field(description="models that this ensemble or pipeline runs; empty for other models"),
    ]


class Duration(BaseModel):
    """A number of events and their total duration."""

    count: int
    ns: int


class RequestStatistics(BaseModel):
    """The durations of the stages of requests."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(BaseModel):
    """The durations of the stages of executions with one batch size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class VersionStatistics(BaseModel):
    """Counters of one version, under the names of Triton's statistics extension."""

    version: str
    last_inference: Annotated[
        int,
        Field(
            description="time of the last inference in milliseconds since 1970; 0 if there was none"
        ),
    ]
    inference_count: Annotated[
        int, Field(description="number of inferred images, or of rows of tensors")
    ]
    execution_count: Annotated[int, Field(description="number of calls of the engine")]
    pending: Annotated[int, Field(description="number of requests that wait for the engine now")]
    inference_stats: RequestStatistics
    batch_stats: list[BatchStatistics]


class ModelStatistics(BaseModel):
    """Counters of a model's ready versions since they were loaded."""

    name: str
    durations: Annotated[
        dict[str, int],
        Field(
            description=(
                "number of successful requests by largest duration in seconds, cumulative as in"
                " a Prometheus histogram: +Inf counts all requests since the server started; "
                "empty before the first request"
            )
        ),
    ]
    versions: list[VersionStatistics]


def model_list(registry: Registry) -> ModelList:
    """Return every model that is served or failed to load, sorted by name."""
    models = []
    names = dict.fromkeys(entry.name for entry in registry.index())
    for name in filter(registry.sees, names):
        try:
            models.append(ModelSummary(**_summary(registry, registry.get(name))))
        except ModelNotReady as error:
            models.append(ModelSummary(name=name, ready=False, reason=str(error)))
        except NotFound:
            # The repository contains the model, but no request has loaded it yet.
            continue
    return ModelList(models=models)


def model_document(registry: Registry, name: str, version: int | None) -> Model:
    """Return the document of one version of a model. Raise the errors of `Registry.get`."""
    model = registry.get(name, version)
    engine = model.engine
    tensors = model_metadata(model, ())
    card, missing = None, None
    if engine is not None and engine.card.created is not None:
        card = public_card(engine.card)
    elif engine is not None:
        missing = _NOT_BUILT
    else:
        missing = model.reason or "an ensemble has no engine of its own"
    return Model(
        **_summary(registry, model),
        max_batch_size=model.signature.max_batch_size,
        inputs=tensors["inputs"],
        outputs=tensors["outputs"],
        preprocess=None if engine is None else engine.card.preprocess,
        labels=None if engine is None or engine.labels is None else list(engine.labels),
        card=card,
        card_reason=missing,
        made_of=list(model.config.composing),
    )


def _summary(registry: Registry, model: ServedModel) -> dict[str, Any]:
    engine = model.engine
    ready = model.state is State.READY
    now = registry.get(model.name)
    current = str(now.version) if now.state is State.READY else None
    return {
        "name": model.name,
        "version": str(model.version),
        "ready": ready,
        "reason": model.reason or None,
        "versions": [
            ModelVersion(
                **{**asdict(entry), "current": entry.version == current},
                ready=entry.state == State.READY,
            )
            for entry in registry.entries(model.name)
            if entry.version is not None
        ]
        + [
            ModelVersion(
                version=str(version),
                state=State.UNAVAILABLE,
                ready=False,
                reason=_NOT_LOADED.format(name=model.name, version=version),
                current=False,
            )
            for version in registry.list_unloaded(model.name)
        ],
        "task": model.task if ready else None,
        "accepts_images": model.takes_images,
        "backend": None if engine is None else engine.card.backend,
        "precision": None if engine is None else engine.card.precision,
        "label_count": len(engine.labels or ()) if engine is not None else 0,
    }
