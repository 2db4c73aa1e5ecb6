"""The endpoints for metadata, configuration, statistics and health.

Triton answers health requests with a status and no body; KServe's clients read the body, so there
is one.
"""

from __future__ import annotations

from fovea_preprocess.errors import ModelNotReady, NotFound
from fovea_server.dataplane.config_json import config_json
from fovea_server.dataplane.metadata import server_metadata
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.statistics_json import statistics_json
from fovea_server.http.v2.endpoints.names import model_of, name_of, version_of
from fovea_server.http.v2.messages import Answer, Request, json_answer
from fovea_server.models.model import State


async def server(service: Service, request: Request) -> Answer:
    """Answer with the server's name, version and extensions."""
    return json_answer(server_metadata(service))


async def model(service: Service, request: Request) -> Answer:
    """Answer with a model's versions, inputs and outputs."""
    return json_answer(service.plane.metadata(model_of(service, request)))


async def config(service: Service, request: Request) -> Answer:
    """Answer with the complete configuration of a model."""
    return Answer(body=[config_json(model_of(service, request).config)])


async def statistics(service: Service, request: Request) -> Answer:
    """Answer with the counters of a model."""
    name, version = name_of(request, "model"), version_of(request)
    return json_answer(statistics_json(service.plane, name, version))


async def all_statistics(service: Service, request: Request) -> Answer:
    """Answer with the counters of all models."""
    return json_answer(statistics_json(service.plane, None, None))


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
