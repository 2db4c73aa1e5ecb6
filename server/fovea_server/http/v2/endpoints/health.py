"""The health endpoints for Triton's clients and Kubernetes' probes.

Triton answers with a status and no body; KServe's clients read the body, so there is one.
"""

from __future__ import annotations

from fovea_preprocess.errors import ModelNotReady, NotFound
from fovea_server.dataplane.service import Service
from fovea_server.http.v2.endpoints.names import name_of, version_of
from fovea_server.http.v2.messages import Answer, Request, json_answer
from fovea_server.models.model import State


async def live(service: Service, request: Request) -> Answer:
    """Answer that the process is live."""
    return json_answer({"live": True})


async def ready(service: Service, request: Request) -> Answer:
    """Report if the server is ready."""
    if service.plane.ready:
        return json_answer({"ready": True})
    return _not_ready({"ready": False, "reason": service.plane.reason})


async def model_ready(service: Service, request: Request) -> Answer:
    """Report if a model is ready; its newest version unless the path names one."""
    try:
        model = service.plane.get(name_of(request, "model"), version_of(request))
    except (NotFound, ModelNotReady) as error:
        reason = str(error)
    else:
        if model.state is State.READY:
            return json_answer({"name": model.name, "ready": True})
        reason = model.reason
    return _not_ready({"error": "Model version not ready", "ready": False, "reason": reason})


def _not_ready(value: dict[str, object]) -> Answer:
    # 400 and not 503: clients and probes of Triton expect that.
    answer = json_answer(value)
    answer.status = 400
    return answer
