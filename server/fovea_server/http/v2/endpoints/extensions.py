"""The endpoints for shared memory, trace settings and log settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fovea_preprocess.errors import InvalidRequest
from fovea_server.dataplane.service import Service
from fovea_server.extensions.json_values import as_string, as_unsigned
from fovea_server.http.v2.json_reader import base64_bytes, find, member, parse_json
from fovea_server.http.v2.messages import Answer, Request, json_answer


async def system_status(service: Service, request: Request) -> Answer:
    """List regions of system memory."""
    regions = service.system_shared_memory.status(request.name("region") or None)
    return json_answer([asdict(region) for region in regions])


async def register_system(service: Service, request: Request) -> Answer:
    """Register a region of system memory."""
    name = _named(request, "system")
    given = parse_json(request.body)
    service.system_shared_memory.register(
        name,
        as_string(_required(given, "key")),
        as_unsigned(find(given, "offset", 0)),
        as_unsigned(_required(given, "byte_size")),
    )
    return Answer()


async def unregister_system(service: Service, request: Request) -> Answer:
    """Unregister a region of system memory, or all."""
    service.system_shared_memory.unregister(request.name("region") or None)
    return Answer()


async def cuda_status(service: Service, request: Request) -> Answer:
    """List regions of GPUs' memory."""
    regions = service.cuda_shared_memory.status(request.name("region") or None)
    return json_answer([asdict(region) for region in regions])


async def register_cuda(service: Service, request: Request) -> Answer:
    """Register a region of a GPU's memory."""
    name = _named(request, "cuda")
    given = parse_json(request.body)
    handle = as_string(member(_required(given, "raw_handle"), "b64"))
    byte_size = as_unsigned(member(given, "byte_size"))
    device_id = as_unsigned(member(given, "device_id"))
    # In a thread: the first one opens the GPU, which takes long.
    register = service.cuda_shared_memory.register
    await asyncio.to_thread(register, name, _decoded(handle), device_id, byte_size)
    return Answer()


async def unregister_cuda(service: Service, request: Request) -> Answer:
    """Unregister a region of a GPU's memory, or all."""
    service.cuda_shared_memory.unregister(request.name("region") or None)
    return Answer()


def _named(request: Request, kind: str) -> str:
    name = request.name("region")
    if not name:
        raise InvalidRequest(f"'region name' is necessary to register {kind} shared memory region")
    return name


def _required(given: object, name: str) -> object:
    value = find(given, name)
    if value is None:
        raise InvalidRequest(f"Shared memory register request has no '{name}' field")
    return value


def _decoded(text: str) -> bytes:
    try:
        return base64_bytes(text)
    except ValueError:
        # Empty, so that `register` refuses it as a handle of the wrong length.
        return b""


async def trace(service: Service, request: Request) -> Answer:
    """Read or change the trace settings of a model or of all."""
    model = request.name("model") or None
    if request.method == "POST":
        return json_answer(service.trace.update(model, _given(request)))
    return json_answer(service.trace.get(model))


async def log(service: Service, request: Request) -> Answer:
    """Read or change the log settings."""
    if request.method == "POST":
        return json_answer(service.log_settings.update(_given(request)))
    return json_answer(service.log_settings.get())


def _given(request: Request) -> Mapping[str, Any]:
    given = parse_json(request.body)
    # Triton changes no setting if the body is not an object.
    return given if type(given) is dict else {}
