"""The shared memory extensions: tensors in registered memory of this machine or of its GPUs.

Sources: "System Shared Memory Extension" and "CUDA Shared Memory Extension" of Triton's protocol.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakSet, WeakValueDictionary

from fovea_engines.backends.backend import GpuBuffer, GpuMemory
from fovea_engines.backends.registry import open_gpu_memory
from fovea_preprocess.errors import (
    AlreadyExists,
    BackendError,
    InvalidRequest,
    NotFound,
    RegionFailed,
    Unsupported,
)
from fovea_server.listen import share_of_descriptors

log = logging.getLogger(__name__)

Description = TypeVar("Description")
OpenedT = TypeVar("OpenedT")

# Directory of POSIX shared memory in Linux. Files in other directories cannot be registered.
_FOLDER = "/dev/shm"
# Largest number of mapped objects, and the largest fraction of the process's file descriptors for
# these objects.
_MAX_OBJECTS, _SHARE = 1024, 0.25
_CUDA_HANDLE_BYTES = 64
# Prefix of the region names of Triton's Python backend, which may run on the same machine. Clients
# may not use such names.
_RESERVED = "triton_python_backend_shm_region_"


class RegionSlice(NamedTuple):
    """The part of a region that contains a tensor. `offset` and `byte_size` are in bytes."""

    region: str
    offset: int
    byte_size: int


class RegionTable(Generic[Description, OpenedT]):
    """The registered regions of one kind of memory, "system" or "cuda". Methods are thread-safe."""

    def __init__(self, kind: str, allowed: bool) -> None:
        self._kind = kind
        self._allowed = allowed
        self._lock = threading.Lock()
        # Maps the name of a region to its description and the open region.
        self._regions: dict[str, tuple[Description, OpenedT]] = {}

    def unregister(self, name: str | None = None) -> None:
        """Unregister one region or all regions. The name of an unknown region is ignored."""
        with self._lock:
            if name is None:
                self._regions.clear()
            else:
                self._regions.pop(name, None)

    def status(self, name: str | None = None) -> list[Description]:
        """Return the description of one region, or the descriptions of all regions sorted by name.

        Raises:
            NotFound: no region has this name.
        """
        regions = dict(self._regions)
        if name is None:
            return [regions[name][0] for name in sorted(regions)]
        if name not in regions:
            raise NotFound(f"Unable to find {self._kind} shared memory region: '{name}'")
        return [regions[name][0]]

    def find(self, name: str) -> OpenedT | None:
        """Return a region by its name, or None if it is unknown.

        A region stays open while it is referenced.
        """
        found = self._regions.get(name)
        return None if found is None else found[1]

    def _check_allowed(self) -> None:
        if not self._allowed:
            raise Unsupported(
                "this server does not accept shared memory from clients: start it with "
                "--allow-client-shm=true if you trust all clients that can reach it"
            )

    def _add(self, name: str, region: Description, open_region: Callable[[], OpenedT]) -> None:
        with self._lock:
            if name in self._regions:
                raise AlreadyExists(f"shared memory region '{name}' already in manager")
            self._regions[name] = region, open_region()


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """A region of system memory. `key` is the name of its shared memory object for `shm_open`."""

    name: str
    key: str
    offset: int
    byte_size: int


class SystemSharedMemory(RegionTable[SystemRegion, "MappedRegion"]):
    """The registered regions of system memory.

    An unregistered region stays mapped until its last view is released.

    Tensors are not copied, as in Triton. The server checks the size of a region before the engine
    reads it. If a client truncates the object after this check, the read kills the process
    (SIGBUS). Clients must therefore not truncate an object while a request uses it. For this reason
    shared memory is disabled by default.
    """

    def __init__(self, allowed: bool) -> None:
        super().__init__("system", allowed)
        self._objects = MappedObjects()

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region.

        Raises:
            Unsupported: the server does not allow shared memory.
            AlreadyExists: another region has this name.
            RegionFailed: the object does not exist or cannot be opened.
            InvalidRequest: the object is smaller than the region, or its name is reserved.
        """
        self._check_allowed()
        region = SystemRegion(name, key, offset, byte_size)
        self._add(name, region, lambda: MappedRegion(region, self._objects))


def max_objects() -> int:
    """Return the largest number of mapped objects. Each mapped object needs a file descriptor."""
    return min(_MAX_OBJECTS, share_of_descriptors(_SHARE))


class MappedObjects:
    """The mapped shared memory objects. Each object has one mapping and one file descriptor."""

    def __init__(self) -> None:
        # Mapped objects by (device, inode). An object that has grown is mapped again. A map is
        # closed when the last region that uses it is released.
        self._maps: WeakValueDictionary[tuple[int, int], mmap.mmap] = WeakValueDictionary()
        self._all: WeakSet[mmap.mmap] = WeakSet()

    def map(self, descriptor: int, end: int) -> mmap.mmap:
        """Map the bytes of an object up to the offset `end`, or more.

        Raises:
            RegionFailed: too many objects are mapped.
            OSError, ValueError: the object cannot be mapped.
        """
        found = os.fstat(descriptor)
        key = found.st_dev, found.st_ino
        mapped = self._maps.get(key)
        # If the object has grown since it was mapped, the old map may be too short.
        if mapped is None or len(mapped) < end:
            if len(self._all) >= (most := max_objects()):
                raise RegionFailed(
                    f"{most} shared memory objects are already registered, and the limit is "
                    "reached: unregister some, or put more regions into one object"
                )
            mapped = self._maps[key] = mmap.mmap(descriptor, found.st_size)
            self._all.add(mapped)
        return mapped


class MappedRegion:
    """A region of system memory. It stays mapped until its last reference is released."""

    def __init__(self, region: SystemRegion, objects: MappedObjects) -> None:
        self.region = region
        descriptor = _open_object(region)
        try:
            room = os.fstat(descriptor).st_size - region.offset
            if region.offset < 0 or not 0 < region.byte_size <= room:
                raise _invalid(region.name)
            self._map = objects.map(descriptor, region.offset + region.byte_size)
        except (OSError, ValueError) as error:
            log.debug("shared memory region %r: %s", region.name, error)
            raise _invalid(region.name) from error
        finally:
            os.close(descriptor)

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Return a view of a part of the region.

        Raises:
            RegionFailed: the object was truncated.
        """
        # Detect an object that was truncated before the request. A later truncation kills the
        # process; see `SystemSharedMemory`.
        if self._map.size() < self.region.offset + self.region.byte_size:
            raise RegionFailed(f"Invalid shared memory region: '{self.region.key}'")
        begin = self.region.offset + offset
        return memoryview(self._map)[begin : begin + byte_size]

    def write(self, offset: int, data: memoryview) -> None:
        """Write to a part of the region.

        Raises:
            RegionFailed: the object was truncated.
        """
        self.read(offset, data.nbytes)[:] = data


def _open_object(region: SystemRegion) -> int:
    name = region.key.lstrip("/")
    if name.startswith(_RESERVED):
        raise InvalidRequest(
            f"cannot register shared memory region '{region.name}' with key '{region.key}' as the "
            f"key contains the reserved prefix '{_RESERVED}'"
        )
    refused = RegionFailed(f"Unable to open shared memory region: '{region.key}'")
    # The name must be a single path component, as in shm_open.
    if not name or "/" in name or "\0" in name:
        raise refused
    try:
        descriptor = os.open(
            f"{_FOLDER}/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
    except (OSError, UnicodeEncodeError) as error:
        log.debug("shared memory region %r: %s", region.name, error)
        raise refused from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise refused


def _invalid(name: str) -> InvalidRequest:
    return InvalidRequest(f"failed to register shared memory region '{name}': invalid args")


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """A region of GPU memory that another process has allocated."""

    name: str
    device_id: int
    byte_size: int


class CudaSharedMemory(RegionTable[CudaRegion, "OpenedCudaRegion"]):
    """The registered regions of GPU memory. The server copies tensors to and from host memory."""

    def __init__(self, allowed: bool, memory: Callable[[], GpuMemory] = open_gpu_memory) -> None:
        super().__init__("cuda", allowed)
        self._open_memory = memory
        self._memory: GpuMemory | None = None
        # Open regions, including unregistered regions that are still in use.
        self._still_open: WeakSet[OpenedCudaRegion] = WeakSet()

    def register(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Open memory that another process has allocated, by its `cudaIpcMemHandle_t`.

        Raises:
            Unsupported: the server does not allow shared memory.
            AlreadyExists: another region has this name.
            InvalidRequest: the handle is invalid, the GPU does not exist, or the allocated memory
                is smaller than `byte_size`.
        """
        self._check_allowed()
        if len(raw_handle) != _CUDA_HANDLE_BYTES:
            raise InvalidRequest("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
        region = CudaRegion(name, device_id, byte_size)
        try:
            self._add(name, region, lambda: self._open(region, raw_handle))
        except BackendError as error:
            log.warning("CUDA shared memory region %r: %s", name, error)
            raise InvalidRequest("failed to register shared memory region: invalid args") from error

    def _open(self, region: CudaRegion, handle: bytes) -> OpenedCudaRegion:
        if self._memory is None:
            self._memory = self._open_memory()
        try:
            buffer = self._memory.open(region.device_id, handle, region.byte_size)
        except InvalidRequest as error:
            log.warning("CUDA shared memory region %r: %s", region.name, error)
            raise _invalid(region.name) from error
        opened = OpenedCudaRegion(region, buffer)
        self._still_open.add(opened)
        return opened

    def close(self) -> None:
        """Unregister all regions and release the GPUs. A second call does nothing."""
        self.unregister()
        with self._lock:
            for region in list(self._still_open):
                region.close()
            if self._memory is not None:
                self._memory.close()


class OpenedCudaRegion:
    """An open region of GPU memory. It is closed with its last reference.

    Methods are thread-safe.
    """

    def __init__(self, region: CudaRegion, buffer: GpuBuffer) -> None:
        self.region = region
        self._buffer = buffer

    def close(self) -> None:
        """Close the region even if it is still referenced. A second call does nothing."""
        self._buffer.close()

    def read(self, offset: int, byte_size: int) -> memoryview:
        """Copy a part of the region to host memory.

        Raises:
            RegionFailed: the GPU has failed.
        """
        with self._failures():
            return self._buffer.read(offset, byte_size)

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of `data` to the region.

        Raises:
            RegionFailed: the GPU has failed.
        """
        with self._failures():
            self._buffer.write(offset, data)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BackendError as error:
            raise RegionFailed(f"shared memory region '{self.region.name}': {error}") from error


OpenRegion = MappedRegion | OpenedCudaRegion


class OutputPlace:
    """The place of an output in shared memory. It stays valid after the region is unregistered."""

    def __init__(self, target: OpenRegion, offset: int, byte_size: int) -> None:
        self._target = target
        self._offset = offset
        self._byte_size = byte_size

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write the bytes of an output.

        Raises:
            RegionFailed: the output does not fit, or the memory no longer exists.
        """
        view = memoryview(data)
        if view.nbytes > self._byte_size:
            raise RegionFailed(
                f"shared memory size specified with the request for output '{name}' "
                f"({self._byte_size} bytes) should be at least {view.nbytes} bytes to hold the "
                "results"
            )
        self._target.write(self._offset, view)


class SharedRegions:
    """Finds tensors in registered regions, with Triton's error texts.

    Raises:
        NotFound: the region is not registered.
        InvalidRequest: the offset or the size exceeds the region.
        RegionFailed: the memory of the region no longer exists.
    """

    def __init__(self, system: SystemSharedMemory, cuda: CudaSharedMemory) -> None:
        self._system = system
        self._cuda = cuda

    def read(self, region: str, offset: int, byte_size: int) -> memoryview:
        """Return a view of bytes of a system region, or a copy of bytes of a GPU region.

        Clients can change the bytes under a view.
        """
        return self._find(region, offset, byte_size).read(offset, byte_size)

    def output(self, region: str, offset: int, byte_size: int) -> OutputPlace:
        """Return the place of an output. The request is checked here, before the model runs."""
        return OutputPlace(self._find(region, offset, byte_size), offset, byte_size)

    def _find(self, region: str, offset: int, byte_size: int) -> OpenRegion:
        found: OpenRegion | None = self._system.find(region) or self._cuda.find(region)
        if found is None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        size = found.region.byte_size
        if not 0 <= offset < size:
            raise InvalidRequest(f"Invalid offset for shared memory region: '{region}'")
        if not 0 <= byte_size <= size - offset:
            raise InvalidRequest(f"Invalid offset + byte size for shared memory region: '{region}'")
        return found
