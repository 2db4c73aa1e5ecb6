"""The objects of the extensions, which the transports of a server share."""

from __future__ import annotations

from collections.abc import Callable

from fovea_server.log_settings import LogSettings
from fovea_server.logs import SERVER_LOG
from fovea_server.settings import Settings
from fovea_server.tensors.cuda_shared_memory import CudaSharedMemory
from fovea_server.tensors.regions import SharedRegions
from fovea_server.tensors.shared_memory import SharedMemory
from fovea_server.traffic.triton_trace import TraceSettings


class Extensions:
    """Shared memory, traces and settings of the log of one server.

    `find` raises NotFound where there is no model of a name. Raises InvalidOption for an invalid
    setting.
    """

    def __init__(self, settings: Settings, find: Callable[[str], object]) -> None:
        self.system_shared_memory = SharedMemory(settings.allow_client_shm)
        self.cuda_shared_memory = CudaSharedMemory(settings.allow_client_shm)
        self.regions = SharedRegions(self.system_shared_memory, self.cuda_shared_memory)
        self.trace = TraceSettings(settings.trace_config, find)
        self.log_settings = LogSettings(SERVER_LOG)

    def close(self) -> None:
        """Release the memory of GPUs. Calling it again does nothing."""
        self.cuda_shared_memory.close()
