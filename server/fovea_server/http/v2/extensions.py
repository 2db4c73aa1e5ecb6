"""The endpoints for shared memory, trace settings and log settings of the v2 protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.service import Service
from fovea_server.http.base64_text import base64_bytes
from fovea_server.http.messages import Request, Response
from fovea_server.http.v2.answers import json_answer
from fovea_server.tensors.shared_memory import CudaSharedMemory, SystemSharedMemory
from fovea_server.tensors.triton_json import as_string, as_unsigned, find, member, parse_json


async def status(service: Service, request: Request) -> Response:
    """Return one region or all regions of system or GPU memory."""
    regions = _memory(service, request).status(request.names["region"])
    return json_answer([asdict(region) for region in regions])


async def unregister(service: Service, request: Request) -> Response:
    """Unregister one region or all regions of system or GPU memory."""
    _memory(service, request).unregister(request.names["region"])
    return Response()


def _memory(service: Service, request: Request) -> SystemSharedMemory | CudaSharedMemory:
    extensions = service.extensions
    cuda = request.name("memory") == "cuda"
    return extensions.cuda_shared_memory if cuda else extensions.system_shared_memory


async def register(service: Service, request: Request) -> Response:
    """Register a region of system or GPU memory."""
    name, kind = request.name("region"), request.name("memory")
    if not name:
        raise InvalidRequest(f"'region name' is necessary to register {kind} shared memory region")
    given = await _parse(service, request)
    if kind == "cuda":
        await _register_cuda(service, name, given)
    else:
        service.extensions.system_shared_memory.register(
            name,
            as_string(_read_required(given, "key")),
            as_unsigned(find(given, "offset", 0)),
            as_unsigned(_read_required(given, "byte_size")),
        )
    return Response()


async def _register_cuda(service: Service, name: str, given: object) -> None:
    try:
        handle = base64_bytes(as_string(member(_read_required(given, "raw_handle"), "b64")))
    except ValueError:
        # Invalid base64 becomes an empty handle, so it gets the same error as a handle of the wrong
        # length.
        handle = b""
    byte_size = as_unsigned(member(given, "byte_size"))
    device_id = as_unsigned(member(given, "device_id"))
    # Register in a thread, because the first registration initializes the GPU, which takes long.
    register = service.extensions.cuda_shared_memory.register
    await asyncio.to_thread(register, name, handle, device_id, byte_size)


def _read_required(given: object, name: str) -> object:
    value = find(given, name)
    if value is None:
        raise InvalidRequest(f"Shared memory register request has no '{name}' field")
    return value


async def trace(service: Service, request: Request) -> Response:
    """Return or change the trace settings of one model or of all models."""
    model = request.names["model"]
    if request.call.method == "POST":
        given = await _read_object(service, request)
        return json_answer(service.extensions.trace.update(model, given))
    return json_answer(service.extensions.trace.get(model))


async def log(service: Service, request: Request) -> Response:
    """Return or change the log settings."""
    if request.call.method == "POST":
        given = await _read_object(service, request)
        return json_answer(service.extensions.log_settings.update(given))
    return json_answer(service.extensions.log_settings.get())


async def _parse(service: Service, request: Request) -> Any:
    return await service.json.run(request.body, partial(parse_json, request.body))


async def _read_object(service: Service, request: Request) -> Mapping[str, Any]:
    given = await _parse(service, request)
    # Treat a body that is not an object as an object without settings, as Triton does.
    return given if type(given) is dict else {}
