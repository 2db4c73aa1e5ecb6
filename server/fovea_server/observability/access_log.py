"""The access log: a line for every request."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import NamedTuple

from fovea_server.log_lines import LONGEST_NAME, cut
from fovea_server.logs import ServerLog

log = logging.getLogger("fovea_server.access")

# Bytes of a line beside the names that the client chooses.
_REST = 200


class Access(NamedTuple):
    """A request that was answered.

    Attributes:
        method: of HTTP, or name of the RPC.
        model: the name in the request; "" for none.
        status: HTTP status, 499 where the client left before the answer; or name of gRPC's.
        size: bytes of the answer's body.
        began: by `time.monotonic`.
        key: name of its key; "" where it has none.
    """

    client: str
    method: str
    path: str
    model: str
    status: int | str
    size: int
    began: float
    id: str
    key: str = ""


class AccessLog:
    """Logs requests: a record of `logging` for each would cost several times as much."""

    def __init__(self, log: ServerLog) -> None:
        self._log = log

    def add(self, access: Access, *, probe: bool) -> None:
        """Log a request at INFO; a probe at DEBUG."""
        level = logging.DEBUG if probe else logging.INFO
        if self._log.takes(log, level):
            named = len(access.method) + len(access.path) + len(access.model)
            if named > LONGEST_NAME:
                method, path, model = map(cut, (access.method, access.path, access.model))
                access = access._replace(method=method, path=path, model=model)
                named = len(method) + len(path) + len(model)
            ms = 1e3 * (time.monotonic() - access.began)
            line = partial(self._line, time.time(), ms, "DEBUG" if probe else "INFO", access)
            # Formatted later, in the thread of the log: no answer waits for that.
            self._log.add(line, _REST + named)

    def _line(self, created: float, ms: float, level: str, access: Access) -> str:
        line = self._json_line if self._log.lines.is_json else self._text_line
        return f"{line(created, ms, level, access)}\n"

    def _text_line(self, created: float, ms: float, level: str, access: Access) -> str:
        client, method, path, model, status, size, _, request_id, key = access
        # A gRPC client may call a method by any name.
        shown = method if method.isprintable() else "-"
        named = f" model={model!r}" if model else ""
        return self._log.lines.text_line(
            created,
            level,
            log.name,
            f"{client} {shown} {path!r}{named} status={status} bytes={size} "
            f"ms={ms:.2f} id={request_id}{f' key={key}' if key else ''}",
        )

    def _json_line(self, created: float, ms: float, level: str, access: Access) -> str:
        client, method, path, model, status, size, _, request_id, key = access
        fields = {
            "client": client,
            "method": method,
            "path": path,
            "model": model or None,
            "status": status,
            "bytes": size,
            "ms": round(ms, 2),
            "id": request_id,
            **({"key": key} if key else {}),
        }
        message = f"{method} {path} {status}"
        return self._log.lines.json_line(created, level, log.name, message, fields)
