"""The endpoints for metadata, configuration and statistics."""

from __future__ import annotations

from fovea_server.dataplane.config_json import config_json
from fovea_server.dataplane.metadata import server_metadata
from fovea_server.dataplane.service import Service
from fovea_server.dataplane.statistics_json import statistics_json
from fovea_server.http.v2.endpoints.names import model_of, name_of, version_of
from fovea_server.http.v2.messages import Answer, Request, json_answer


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
