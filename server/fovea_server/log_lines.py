"""Formats log records as lines of text, or as one JSON object per line."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal

import orjson

LogFormat = Literal["default", "ISO8601", "json"]

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""ID of the current request. Log records during the request contain it."""

# Attributes that every log record has. All other attributes of a record are extra fields.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Attributes that are not written as extra fields. uvicorn adds a coloured copy of the message, and
# Ray adds a timestamp. Fovea writes the last three fields itself.
_LEFT_OUT = _STANDARD | {"color_message", "_ray_timestamp_ns", "time", "level", "logger"}
_LONGEST_MESSAGE = 8192
# Largest number of characters of a name from a client in a log line. A client could send a very
# long name.
LONGEST_NAME = 1024
# Control characters and line separators. They are escaped, so that a name from a client can neither
# start a new log line nor control a terminal.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def cut(text: str, length: int = LONGEST_NAME) -> str:
    """Return a text. If it is longer than `length` characters, cut it and add "..."."""
    return text if len(text) <= length else f"{text[:length]}..."


def _escape(text: str) -> str:
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class LineFormatter(logging.Formatter):
    """Formats log records. `chosen` returns the current format."""

    def __init__(self, chosen: Callable[[], LogFormat]) -> None:
        super().__init__()
        self._chosen = chosen
        # The time of the last line in seconds, and the formatted text of this second, because most
        # lines share a second.
        self._second: tuple[int, LogFormat, str] = (0, "default", "")

    @property
    def is_json(self) -> bool:
        """True if log lines are JSON objects."""
        return self._chosen() == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line.

        In text formats, a traceback follows the line and is indented.
        """
        # Write the name of Fovea's HTTP package for uvicorn's records, because uvicorn is an
        # implementation detail.
        name = "fovea_server.http" if record.name.startswith("uvicorn") else record.name
        # Remove line breaks at the end, which some messages of uvicorn have.
        message = cut(record.getMessage().rstrip("\n"), _LONGEST_MESSAGE)
        exception = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        fields = {k: v for k, v in vars(record).items() if k not in _LEFT_OUT}
        if request_id := fields.get("id") or REQUEST_ID.get():
            fields["id"] = request_id
        if self.is_json:
            if exception:
                fields["exception"] = exception
            return self.json_line(record.created, record.levelname, name, message, fields)
        text = f"{message} id={request_id}" if request_id else message
        line = self.text_line(record.created, record.levelname, name, _escape(text))
        below = exception.split("\n") if exception else ()
        return "\n  ".join((line, *map(_escape, below)))

    def text_line(self, created: float, level: str, logger: str, message: str) -> str:
        """Return a line of text. `created` is the time in seconds since the epoch."""
        return f"{self._time(created)} {level:<7} {logger}: {message}"

    def json_line(
        self, created: float, level: str, logger: str, message: str, fields: Mapping[str, Any]
    ) -> str:
        """Return a JSON object. `fields` are its additional members."""
        value = {
            "time": self._time(created),
            "level": level,
            "logger": logger,
            "message": message,
            **fields,
        }
        try:
            return orjson.dumps(value, default=str).decode()
        except TypeError:
            # orjson rejects lone surrogates, which a quoted path can contain. The module json
            # accepts them.
            return json.dumps(value, default=str)

    def _time(self, created: float) -> str:
        chosen, second = self._chosen(), int(created)
        latest, as_chosen, text = self._second
        if latest != second or as_chosen != chosen:
            if chosen == "default":
                text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            else:
                text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = (second, chosen, text)
        if chosen == "ISO8601":
            return f"{text}Z"
        milliseconds = int(1e3 * (created - second))
        return f"{text}.{milliseconds:03d}Z" if chosen == "json" else f"{text},{milliseconds:03d}"
