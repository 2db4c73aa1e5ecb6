"""Sends recorded requests again, and compares the answers with the recorded ones."""

import base64
import http.client
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPARED_HEADERS = ("Content-Type", "Content-Encoding", "Inference-Header-Content-Length")

# What depends on the backend (Triton ran Python doubles of the models), on time, and on what was
# asked before.
VOLATILE = {"platform", "backend", "default_model_filename"}
VOLATILE_STATISTICS = {"last_inference", "inference_count", "execution_count", "count", "ns"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Row:
    """A recorded request and its answer."""

    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    answer: Answer


def _body(record: dict[str, Any]) -> bytes:
    if "body_b64" in record:
        return base64.b64decode(record["body_b64"])
    return record.get("body", "").encode()


def read_rows(file: Path) -> list[Row]:
    rows = []
    for line in file.read_text().splitlines():
        record = json.loads(line)
        sent = record["request"]
        answer = Answer(record["status"], dict(record["headers"]), _body(record))
        rows.append(
            Row(record["name"], sent["method"], sent["path"], sent["headers"], _body(sent), answer)
        )
    return rows


def send(
    port: int, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> Answer:
    """A request with these headers and no others."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if method in ("POST", "PUT"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def meaningful_headers(answer: Answer) -> dict[str, str]:
    found = {name.title(): value for name, value in answer.headers.items()}
    return {name: found[name] for name in COMPARED_HEADERS if name in found}


def meaningful_body(answer: Answer) -> object:
    """What must be equal: JSON with its order, less what is volatile; the bytes of all else."""
    body = answer.body
    encoding = {name.title(): value for name, value in answer.headers.items()}.get(
        "Content-Encoding"
    )
    if encoding is not None:
        body = zlib.decompress(body, 32 + zlib.MAX_WBITS)
    try:
        return _steady(json.loads(body, object_pairs_hook=_Members), VOLATILE)
    except ValueError:
        return body


class _Members(list[tuple[str, Any]]):
    """Of an object, in order."""


def _steady(value: object, volatile: set[str]) -> object:
    """A value without what differs each time; numbers of statistics do, those of others do not."""
    if isinstance(value, _Members):
        if any(name == "inference_stats" for name, _ in value):
            volatile = VOLATILE | VOLATILE_STATISTICS
        return [
            (name, None if name in volatile else _batches(name, _steady(part, volatile)))
            for name, part in value
        ]
    if isinstance(value, list):
        return [_steady(part, volatile) for part in value]
    return value


def _batches(name: str, value: object) -> object:
    """Of the statistics of batches their form: which sizes there were is chance."""
    if name == "batch_stats" and isinstance(value, list):
        return [[member for member in batch if member[0] != "batch_size"] for batch in value[:1]]
    return value
