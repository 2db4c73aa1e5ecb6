"""Memory of this machine that clients have registered, for tensors that are not sent.

Source: "System Shared Memory Extension" of Triton's protocol.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import threading
from dataclasses import dataclass

from fovea_preprocess.errors import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    RegionFailed,
    Unsupported,
)

log = logging.getLogger(__name__)

NOT_ALLOWED = (
    "this server does not take shared memory from clients; start it with --allow-client-shm=true "
    "where all who can reach it are trusted"
)

# POSIX shared memory of Linux lives here; nothing else can be registered.
_FOLDER = "/dev/shm"
# Triton's Python backend keeps its tensors in these, and may run beside us.
_RESERVED = "triton_python_backend_shm_region_"


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a shared memory object.

    Attributes:
        name: what requests call it.
        key: name of the object, as `shm_open` takes it.
        offset: of its first byte in the object.
        byte_size: its size.
    """

    name: str
    key: str
    offset: int
    byte_size: int


class SharedMemory:
    """The regions of system memory that clients have registered; any thread may call.

    A view that was handed out stays good when its region is unregistered: the mapping goes with
    the last view of it.

    Nothing is copied, as in Triton, so whoever may name memory is trusted not to truncate its
    object while a request uses it: the engine reads the view later than its size is looked at, and
    reading behind the end of an object ends the process (SIGBUS). Hence the default, not allowed.

    Args:
        allowed: whether clients may register anything.
    """

    def __init__(self, allowed: bool) -> None:
        self._allowed = allowed
        self._lock = threading.Lock()
        self._mapped: dict[str, tuple[Region, _Mapping]] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region, in Triton's words where it is refused.

        Raises:
            Unsupported: clients may not.
            AlreadyExists: the name is taken.
            RegionFailed: there is no such object, or it cannot be opened.
            InvalidRequest: it is smaller than the region, or not for clients.
        """
        if not self._allowed:
            raise Unsupported(NOT_ALLOWED)
        with self._lock:
            if name in self._mapped:
                raise AlreadyExists(f"shared memory region '{name}' already in manager")
            region = Region(name, key, offset, byte_size)
            self._mapped[name] = region, _Mapping(region)

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all; one that is not there is as good as forgotten."""
        with self._lock:
            if name is None:
                self._mapped.clear()
            else:
                self._mapped.pop(name, None)

    def status(self, name: str | None = None) -> list[Region]:
        """One region, or all in the order of their names.

        Raises:
            NotFound: there is none of that name.
        """
        mapped = dict(self._mapped)
        if name is None:
            return [mapped[name][0] for name in sorted(mapped)]
        if name not in mapped:
            raise NotFound(f"Unable to find system shared memory region: '{name}'")
        return [mapped[name][0]]

    def view(self, name: str) -> memoryview | None:
        """All bytes of a region, shared with whoever else has it; None where there is none.

        Raises:
            RegionFailed: the object has become smaller than the region.
        """
        found = self._mapped.get(name)
        return None if found is None else found[1].view()


class _Mapping:
    """A region in this process's address space, until nothing refers to it any more."""

    def __init__(self, region: Region) -> None:
        self._region = region
        descriptor = _open(region)
        try:
            room = os.fstat(descriptor).st_size - region.offset
            if region.offset < 0 or not 0 < region.byte_size <= room:
                raise _invalid(region)
            # The kernel maps whole pages.
            self._skipped = region.offset % mmap.ALLOCATIONGRANULARITY
            self._map = mmap.mmap(
                descriptor,
                self._skipped + region.byte_size,
                offset=region.offset - self._skipped,
            )
        except (OSError, ValueError) as error:
            log.debug("shared memory region %r: %s", region.name, error)
            raise _invalid(region) from error
        finally:
            os.close(descriptor)

    def view(self) -> memoryview:
        # Tells what was cut before the request; `SharedMemory` says what cannot be told.
        if self._map.size() < self._region.offset + self._region.byte_size:
            raise RegionFailed(f"Invalid shared memory region: '{self._region.key}'")
        return memoryview(self._map)[self._skipped :]


def _open(region: Region) -> int:
    name = region.key.lstrip("/")
    if name.startswith(_RESERVED):
        raise InvalidRequest(
            f"cannot register shared memory region '{region.name}' with key '{region.key}' as the "
            f"key contains the reserved prefix '{_RESERVED}'"
        )
    refused = RegionFailed(f"Unable to open shared memory region: '{region.key}'")
    # As shm_open: a name is one component of a path, and leads nowhere else.
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


def _invalid(region: Region) -> InvalidRequest:
    return InvalidRequest(f"failed to register shared memory region '{region.name}': invalid args")
