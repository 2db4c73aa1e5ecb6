"""The access log: a line for every request."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from fovea_server.log_lines import cut
from fovea_server.logs import ServerLog

log = logging.getLogger("fovea_server.access")


class Access(NamedTuple):
    """A request that was answered.

    Attributes:
        method: of HTTP, or name of the RPC.
        model: the name in the request; "" for none.
        status: HTTP status, 499 where the client left before the answer; or name of gRPC's.
        size: bytes of the answer's body.
        began: by `time.monotonic`.
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
    """Logs requests: a record of `logging` for each would cost several times as much."""

    def __init__(self, log: ServerLog) -> None:
        self._log = log

    def add(self, access: Access, *, probe: bool) -> None:
        """Log a request at INFO; a probe at DEBUG."""
        level = logging.DEBUG if probe else logging.INFO
        if self._log.takes(log, level):
            line = self._json_line if self._log.lines.is_json else self._text_line
            ms = 1e3 * (time.monotonic() - access.began)
            self._log.write(f"{line(time.time(), ms, 'DEBUG' if probe else 'INFO', access)}\n")

    def _text_line(self, created: float, ms: float, level: str, access: Access) -> str:
        client, method, path, model, status, size, _, request_id = access
        # A gRPC client may call a method by any name.
        shown = cut(method) if method.isprintable() else "-"
        named = f" model={cut(model)!r}" if model else ""
        return self._log.lines.text_line(
            created,
            level,
            log.name,
            f"{client} {shown} {cut(path)!r}{named} status={status} bytes={size} "
            f"ms={ms:.2f} id={request_id}",
        )

    def _json_line(self, created: float, ms: float, level: str, access: Access) -> str:
        client, method, path, model, status, size, _, request_id = access
        method, path = cut(method), cut(path)
        fields = {
            "client": client,
            "method": method,
            "path": path,
            "model": cut(model) or None,
            "status": status,
            "bytes": size,
            "ms": round(ms, 2),
            "id": request_id,
        }
        message = f"{method} {path} {status}"
        return self._log.lines.json_line(created, level, log.name, message, fields)
