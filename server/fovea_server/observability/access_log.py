"""The access log, with a line for every request."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import NamedTuple

from fovea_server.log_lines import LONGEST_NAME, cut
from fovea_server.logs import ServerLog

log = logging.getLogger("fovea_server.access")

# Estimated size in bytes of a log line without the texts that the client chooses.
_REST = 200


class Access(NamedTuple):
    """A finished request.

    Attributes:
        client: IP address of the client, or "-".
        method: HTTP method, or name of the RPC.
        path: path of the request.
        model: name of the model in the request; "" for none.
        status: HTTP status code (499 if the client disconnected first), or name of the gRPC status.
        size: size of the response body in bytes.
        began: `time.monotonic()` at the start.
        id: id of the request.
        key: name of the key that the request used; "" if it used no key.
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
    """Logs requests without `logging` records, which would take several times as much CPU time."""

    def __init__(self, log: ServerLog) -> None:
        self._log = log

    def add(self, access: Access, *, probe: bool) -> None:
        """Log a request at level INFO, or a health probe at level DEBUG."""
        level = logging.DEBUG if probe else logging.INFO
        if self._log.takes(log, level):
            named = len(access.method) + len(access.path) + len(access.model)
            if named > LONGEST_NAME:
                method, path, model = map(cut, (access.method, access.path, access.model))
                access = access._replace(method=method, path=path, model=model)
                named = len(method) + len(path) + len(model)
            ms = 1e3 * (time.monotonic() - access.began)
            line = partial(self._line, time.time(), ms, "DEBUG" if probe else "INFO", access)
            # A thread of the log formats the line later, so that no response waits for it.
            self._log.add(line, _REST + named)

    def _line(self, created: float, ms: float, level: str, access: Access) -> str:
        line = self._json_line if self._log.lines.is_json else self._text_line
        return f"{line(created, ms, level, access)}\n"

    def _text_line(self, created: float, ms: float, level: str, access: Access) -> str:
        client, method, path, model, status, size, _, request_id, key = access
        # A gRPC client may send any text as the name of a method, so the name is checked.
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
