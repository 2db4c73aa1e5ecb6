"""Responses of the v2 protocol: JSON, and errors in Triton's form."""

from __future__ import annotations

import asyncio
import zlib
from functools import partial

import orjson

from fovea_preprocess.errors import (
    BodyTooLarge,
    FoveaError,
    InvalidRequest,
    RateLimited,
    Unauthenticated,
    Unsupported,
)
from fovea_server.error_status import v2_http_status
from fovea_server.http.messages import JSON, TEXT, Request, Response, error_headers
from fovea_server.http.receive import unpack

# Size in bytes from which a body is compressed in a thread, because the compression would block the
# event loop.
_IN_THREAD = 65_536
_WRITTEN = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


async def decompress(request: Request, limit: int) -> bytes | bytearray:
    """Decompress the body of a request. Treat a damaged body as empty, as Triton does.

    Raises:
        Unsupported: the Content-Encoding is unknown.
        BodyTooLarge: the decompressed body exceeds `limit`.
        QueueFull: the memory budget has no room for the decompressed body.
    """
    encoding = request.headers.get(b"content-encoding", b"identity")
    if encoding in (b"identity", b""):
        return request.body
    if encoding not in (b"gzip", b"deflate"):
        raise Unsupported("Unsupported compression type")
    try:
        return await unpack(request.body, request.hold, limit, partial(too_large, None, limit))
    except zlib.error:
        return b""


def refuse_encoding(request: Request) -> None:
    """Raise InvalidRequest if the body is compressed.

    Only the infer endpoint accepts compressed bodies.
    """
    if request.headers.get(b"content-encoding", b"identity") not in (b"identity", b""):
        raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")


async def compress(answer: Response, accepted: bytes) -> None:
    """Compress a response in place if the client's Accept-Encoding header prefers compression."""
    encoding = _choose_encoding(accepted.decode("latin-1"))
    if encoding is None:
        return
    body, size = answer.body, sum(map(len, answer.body))
    if size > _IN_THREAD:
        answer.body = await asyncio.to_thread(_compress_pieces, body, _WRITTEN[encoding])
    else:
        answer.body = _compress_pieces(body, _WRITTEN[encoding])
    answer.headers.append((b"content-encoding", encoding.encode()))


def _compress_pieces(pieces: list[bytes | memoryview], wbits: int) -> list[bytes | memoryview]:
    compressor = zlib.compressobj(wbits=wbits)
    return [*(compressor.compress(piece) for piece in pieces), compressor.flush()]


def _choose_encoding(accepted: str) -> str | None:
    """Return "gzip", "deflate" or None: the encoding that an Accept-Encoding header prefers.

    If several encodings have the largest weight, return the first of them.
    """
    best, best_weight = "identity", 0.0
    for entry in accepted.split(","):
        encoding, _, weight_text = entry.strip().partition(";q=")
        try:
            weight = float(weight_text or 1)
        except ValueError:
            continue
        if encoding in ("identity", *_WRITTEN) and weight > best_weight:
            best, best_weight = encoding, weight
    return best if best in _WRITTEN else None


def json_answer(value: object) -> Response:
    """Return a response with a value as JSON."""
    return Response(body=[orjson.dumps(value)])


def error_answer(error: FoveaError, media_type: bytes = JSON) -> Response:
    """Return the response for an error, in Triton's form."""
    answer = refusal(v2_http_status(error), str(error), media_type)
    answer.error = error
    # For status 503, leave out Retry-After, because Triton's clients do not expect it.
    if isinstance(error, RateLimited | Unauthenticated):
        answer.headers += error_headers(error)
    return answer


def refusal(status: int, message: str, media_type: bytes = TEXT) -> Response:
    """Return a response with an error message and a status."""
    # The message may quote text of a client that is not valid UTF-8.
    message = message.encode(errors="backslashreplace").decode()
    return Response(status, [orjson.dumps({"error": message})], media_type)


def too_large(size: int | None, limit: int) -> BodyTooLarge:
    """Return the error for a body that exceeds the limit, with the text of Triton 2.73."""
    received = f"over {limit}" if size is None else size
    return BodyTooLarge(
        f"Request JSON size of {received} bytes exceeds the maximum allowed value of {limit} "
        "bytes. Use --http-max-input-size to increase the limit."
    )
