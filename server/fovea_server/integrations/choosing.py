"""Chooses the model for a request of another API, which may name none."""

from __future__ import annotations

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.service import Service
from fovea_server.models.model import ServedModel, State
from fovea_server.traffic.call import Call

BOXES = ("detect", "segment", "pose", "obb")
"""The tasks that find objects with a box."""


def default_model(
    service: Service, call: Call, api: str, tasks: tuple[str, ...], instead: str
) -> ServedModel:
    """Find the model for requests that name none: that of the operator, or the only one.

    Args:
        service: of the server.
        call: the request, whose key may allow some models only.
        api: where the operator may have named a model.
        tasks: that its answers can express.
        instead: how a client can name the model, as an imperative.

    Raises:
        InvalidRequest: there is none, or there are several.
        NotFound, ModelNotReady: that of the operator is not there, or cannot answer.
    """
    if (named := service.apis[api]) is not None:
        service.models.check_ready(named)
        return service.models.get(named)
    principal = call.principal
    ready = [model for model in service.models if model.state is State.READY]
    names = sorted(
        {
            model.name
            for model in ready
            if model.task in tasks and (principal is None or principal.takes(model.name))
        }
    )
    if len(names) == 1:
        return service.models.get(names[0])
    if not names:
        raise InvalidRequest(
            f"no model that is ready answers with {', '.join(tasks)}; GET /v1/models lists the "
            "models and why one is not ready"
        )
    shown = ", ".join(filter(service.authenticator.sees, names))
    raise InvalidRequest(
        f"several models can answer{f' ({shown})' if shown else ''}: {instead}, or start the "
        f"server with --api {api}=MODEL"
    )


def check_task(model: ServedModel, tasks: tuple[str, ...]) -> None:
    """Refuse a model that is ready, and whose answers an API has no form for."""
    if model.state is State.READY and model.task not in tasks:
        raise InvalidRequest(
            f"the task of model '{model.name}' is {model.task}, and this API has answers for "
            f"{', '.join(tasks)}: ask POST /v1/models/{model.name}/predict"
        )
