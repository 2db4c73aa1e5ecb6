"""Builds the documents of /v1 about models."""

from __future__ import annotations

from typing import Any

from fovea_engines.repository.public import public_card
from fovea_preprocess.errors import ModelNotReady, NotFound
from fovea_server.dataplane.metadata import model_metadata
from fovea_server.dataplane.model_schemas import Model, ModelList, ModelSummary, ModelVersion
from fovea_server.models.model import ServedModel, State
from fovea_server.models.registry import Registry

_NOT_BUILT = "`fovea build` did not make this engine: its folder has no card.json"


def model_list(registry: Registry) -> ModelList:
    """List every model that is served, or could not be loaded, by name."""
    models = []
    for name in dict.fromkeys(entry.name for entry in registry.index()):
        try:
            models.append(ModelSummary(**_summary(registry, registry.get(name))))
        except ModelNotReady as error:
            models.append(ModelSummary(name=name, ready=False, reason=str(error)))
        except NotFound:
            # It is in the repository, but no request has loaded it.
            continue
    return ModelList(models=models)


def model_document(registry: Registry, name: str, version: int | None) -> Model:
    """Describe one version of a model; for None, the newest that answers.

    Raises:
        NotFound: there is no such model or version.
        ModelNotReady: none of its versions could be read.
    """
    model = registry.get(name, version)
    engine = model.engine
    tensors = model_metadata(model, ())
    card, missing = None, None
    if engine is not None and engine.card.created is not None:
        card = public_card(engine.card)
    elif engine is not None:
        missing = _NOT_BUILT
    else:
        missing = _reason(model) or "an ensemble has no engine of its own"
    return Model(
        **_summary(registry, model),
        max_batch_size=model.signature.max_batch_size,
        inputs=tensors["inputs"],
        outputs=tensors["outputs"],
        preprocess=None if engine is None else engine.card.preprocess,
        labels=None if engine is None or engine.labels is None else list(engine.labels),
        card=card,
        card_reason=missing,
    )


def _summary(registry: Registry, model: ServedModel) -> dict[str, Any]:
    engine = model.engine
    ready = model.state is State.READY
    task = None
    if ready:
        task = engine.card.task if engine is not None and engine.head else "tensors"
    return {
        "name": model.name,
        "version": str(model.version),
        "ready": ready,
        "reason": _reason(model),
        "versions": [
            ModelVersion(
                version=entry.version,
                state=entry.state,
                ready=entry.state == State.READY,
                reason=entry.reason,
            )
            for entry in registry.entries(model.name)
            if entry.version is not None and entry.state is not None
        ],
        "task": task,
        "accepts_images": model.takes_images,
        "backend": None if engine is None else engine.card.backend,
        "precision": None if engine is None else engine.card.precision,
        "label_count": len(engine.labels or ()) if engine is not None else 0,
    }


def _reason(model: ServedModel) -> str | None:
    """Find the reason why a model is not ready; None if it is."""
    return model.failure or model.reason or None
