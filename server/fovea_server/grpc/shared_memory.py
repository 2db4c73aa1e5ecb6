"""Calls of the shared memory extensions."""

from __future__ import annotations

import asyncio
from typing import Any

from tritonclient.grpc import service_pb2 as messages

from fovea_server.dataplane.service import Service


class SharedMemoryCalls:
    """The shared memory extensions."""

    def __init__(self, service: Service) -> None:
        self._system = service.system_shared_memory
        self._cuda = service.cuda_shared_memory

    async def system_status(self, request: Any) -> Any:
        """SystemSharedMemoryStatus: list one region, or all."""
        answer = messages.SystemSharedMemoryStatusResponse()
        for region in self._system.status(request.name or None):
            added = answer.regions[region.name]
            added.name, added.key = region.name, region.key
            added.offset, added.byte_size = region.offset, region.byte_size
        return answer

    async def register_system(self, request: Any) -> Any:
        """SystemSharedMemoryRegister: register a region."""
        self._system.register(request.name, request.key, request.offset, request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    async def unregister_system(self, request: Any) -> Any:
        """SystemSharedMemoryUnregister: unregister one region, or all."""
        self._system.unregister(request.name or None)
        return messages.SystemSharedMemoryUnregisterResponse()

    async def cuda_status(self, request: Any) -> Any:
        """CudaSharedMemoryStatus: list one region, or all."""
        answer = messages.CudaSharedMemoryStatusResponse()
        for region in self._cuda.status(request.name or None):
            added = answer.regions[region.name]
            added.name, added.device_id = region.name, region.device_id
            added.byte_size = region.byte_size
        return answer

    async def register_cuda(self, request: Any) -> Any:
        """CudaSharedMemoryRegister: register a region; the first on a GPU opens the device."""
        await asyncio.to_thread(
            self._cuda.register,
            request.name,
            request.raw_handle,
            request.device_id,
            request.byte_size,
        )
        return messages.CudaSharedMemoryRegisterResponse()

    async def unregister_cuda(self, request: Any) -> Any:
        """CudaSharedMemoryUnregister: unregister one region, or all."""
        self._cuda.unregister(request.name or None)
        return messages.CudaSharedMemoryUnregisterResponse()
