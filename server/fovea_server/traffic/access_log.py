"""The access log: a line for every request, written without holding up the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from fovea_server.logs import ServerLog

log = logging.getLogger("fovea_server.access")

# Lines are written together: one by one they would cost several times as much.
_INTERVAL_S = 0.05
# Lines that wait while stderr is a full pipe; further ones are dropped, and counted.
_MOST_WAITING = 50_000
_MOST_OF_A_PATH = 1024


class Access(NamedTuple):
    """A request that was answered.

    Attributes:
        client: address of its connection.
        method: of HTTP, or name of the RPC.
        path: with its query.
        model: that it names; "" for none.
        status: HTTP status, 499 where the client left before the answer; or name of gRPC's.
        size: bytes of the answer's body.
        began: by `time.monotonic`.
        id: see `request_id`.
    """

    client: str
    method: str
    path: str
    model: str
    status: int | str
    size: int
    began: float
    id: str


class AccessLog:
    """Collects requests on the event loop, and writes them in a thread.

    Args:
        log: where they go.
    """

    def __init__(self, log: ServerLog) -> None:
        self._log = log
        self._waiting: list[tuple[float, float, str, Access]] = []
        self._dropped = 0
        # A thread of its own: it stands still where nobody reads stderr.
        self._thread = ThreadPoolExecutor(1, "access-log")
        self._writing: Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, access: Access, *, probe: bool) -> None:
        """Log a request at INFO; a probe at DEBUG."""
        level = logging.DEBUG if probe else logging.INFO
        if not self._log.takes(log, level):
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._dropped += 1
            return
        name = "DEBUG" if probe else "INFO"
        self._waiting.append((time.time(), time.monotonic(), name, access))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._flush)
        else:
            self._begin_to_write()

    def _begin_to_write(self) -> None:
        if self._dropped:
            log.warning("%d lines were dropped, as the log was not read", self._dropped)
            self._dropped = 0
        batch, self._waiting = self._waiting, []
        self._writing = self._thread.submit(self._write, batch)

    async def close(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wrap_future(self._writing)
        self._begin_to_write()
        self._thread.shutdown()

    def _write(self, batch: list[tuple[float, float, str, Access]]) -> None:
        line = self._json_line if self._log.lines.is_json else self._text_line
        self._log.write("".join(f"{line(*entry)}\n" for entry in batch))

    def _text_line(self, created: float, ended: float, level: str, access: Access) -> str:
        client, method, path, model, status, size, began, request_id = access
        # A gRPC client may call a method by any name.
        shown = method if method.isprintable() else "-"
        named = f" model={model!r}" if model else ""
        return self._log.lines.text_line(
            created,
            level,
            log.name,
            f"{client} {shown} {_cut(path)!r}{named} status={status} bytes={size} "
            f"ms={1e3 * (ended - began):.2f} id={request_id}",
        )

    def _json_line(self, created: float, ended: float, level: str, access: Access) -> str:
        client, method, path, model, status, size, began, request_id = access
        path = _cut(path)
        fields = {
            "client": client,
            "method": method,
            "path": path,
            "model": model or None,
            "status": status,
            "bytes": size,
            "ms": round(1e3 * (ended - began), 2),
            "id": request_id,
        }
        message = f"{method} {path} {status}"
        return self._log.lines.json_line(created, level, log.name, message, fields)


def _cut(path: str) -> str:
    return path if len(path) <= _MOST_OF_A_PATH else f"{path[:_MOST_OF_A_PATH]}..."
