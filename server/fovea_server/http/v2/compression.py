"""Compresses and decompresses bodies with gzip and deflate."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

from fovea_preprocess.errors import BodyTooLarge, InvalidRequest, Unsupported
from fovea_server.http.v2.messages import Answer, Request

# Compressing more bytes than this would block the event loop.
_IN_THREAD = 65_536
# Bytes that are unpacked on the event loop; the rest is unpacked in a thread, by the piece.
_FIRST, _PIECE = 65_536, 1 << 20
# Packed bytes given to zlib in one call; it copies the rest each time.
_PACKED = 65_536
# zlib's window bits: to read gzip or deflate, whichever it finds; and to write each.
_EITHER = 32 + zlib.MAX_WBITS
_WRITTEN = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


async def decompressed(request: Request, limit: int) -> bytes | bytearray:
    """Decompress the body.

    A body that cannot be decompressed is taken as empty, as Triton does.

    Raises:
        Unsupported: the encoding is neither gzip nor deflate.
        BodyTooLarge: it exceeds the limit; found while unpacking.
        QueueFull: too many bytes are held already.
    """
    encoding = request.headers.get(b"content-encoding", b"identity")
    if encoding in (b"identity", b""):
        return request.body
    if encoding not in (b"gzip", b"deflate"):
        raise Unsupported("Unsupported compression type")
    unpacked = bytearray()
    try:
        async for piece in _unpacked(memoryview(request.body)):
            request.hold(len(piece))
            unpacked += piece
            if len(unpacked) > limit:
                raise too_large(f"over {limit}", limit)
    except zlib.error:
        return b""
    return unpacked


async def _unpacked(body: memoryview) -> AsyncIterator[bytes]:
    unpacker = zlib.decompressobj(_EITHER)
    piece = b""
    for at in range(0, len(body), _PACKED):
        left: bytes | memoryview = body[at : at + _PACKED]
        while left and not unpacker.eof:
            if at or piece:
                # zlib releases the interpreter's lock.
                piece = await asyncio.to_thread(unpacker.decompress, left, _PIECE)
            else:
                piece = unpacker.decompress(left, _FIRST)
            yield piece
            left = unpacker.unconsumed_tail
    yield unpacker.flush()


def too_large(size: int | str, limit: int) -> BodyTooLarge:
    """Make the error for a body over the limit, with the text of Triton 2.73."""
    return BodyTooLarge(
        f"Request JSON size of {size} bytes exceeds the maximum allowed value of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def refuse_encoding(request: Request) -> None:
    """Refuse a compressed body, which only infer accepts.

    Raises:
        InvalidRequest: the body is compressed.
    """
    if request.headers.get(b"content-encoding", b"identity") not in (b"identity", b""):
        raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")


async def compress(answer: Answer, accepted: bytes) -> None:
    """Compress an answer in place, if the client prefers that."""
    encoding = _preferred(accepted.decode("latin-1"))
    if encoding is None:
        return
    body, size = answer.body, sum(map(len, answer.body))
    if size > _IN_THREAD:
        answer.body = await asyncio.to_thread(_packed, body, _WRITTEN[encoding])
    else:
        answer.body = _packed(body, _WRITTEN[encoding])
    answer.headers.append((b"content-encoding", encoding.encode()))


def _packed(pieces: list[bytes | memoryview], wbits: int) -> list[bytes | memoryview]:
    compressor = zlib.compressobj(wbits=wbits)
    return [*(compressor.compress(piece) for piece in pieces), compressor.flush()]


def _preferred(accepted: str) -> str | None:
    """Choose gzip, deflate or None by an Accept-Encoding header; the first of equals."""
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
