"""The objects that all transports share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.extensions.cuda_shared_memory import CudaSharedMemory
from fovea_server.extensions.log_settings import LogSettings
from fovea_server.extensions.regions import Regions
from fovea_server.extensions.restrictions import Restrictions
from fovea_server.extensions.shared_memory import SharedMemory
from fovea_server.extensions.trace import TraceSettings
from fovea_server.logs import SERVER_LOG
from fovea_server.models.registry import Registry
from fovea_server.settings import Settings
from fovea_server.traffic.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Service:
    """The objects that answer requests over any transport."""

    settings: Settings
    plane: DataPlane
    system_shared_memory: SharedMemory
    cuda_shared_memory: CudaSharedMemory
    regions: Regions
    trace: TraceSettings
    log_settings: LogSettings
    traffic: Traffic
    http_restrictions: Restrictions
    grpc_restrictions: Restrictions

    @classmethod
    def of(cls, settings: Settings, registry: Registry) -> Self:
        """Build the service of a registry; raises InvalidOption if a setting is invalid."""
        system = SharedMemory(settings.allow_client_shm)
        cuda = CudaSharedMemory(settings.allow_client_shm)
        trace = TraceSettings(settings.trace_config, registry)
        return cls(
            settings=settings,
            plane=DataPlane(registry, trace),
            system_shared_memory=system,
            cuda_shared_memory=cuda,
            regions=Regions(system, cuda),
            trace=trace,
            log_settings=LogSettings(SERVER_LOG),
            traffic=Traffic(registry, log_access=settings.log_access),
            http_restrictions=Restrictions.parse(settings.http_restricted_api),
            grpc_restrictions=Restrictions.parse(settings.grpc_restricted_protocol),
        )
