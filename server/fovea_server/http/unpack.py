"""Decompresses bodies."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable

from fovea_preprocess.errors import BodyTooLarge

# Bytes decompressed on the event loop, and from then on in a thread.
_FIRST, _PIECE = 65_536, 1 << 20
# Compressed bytes taken in one step; what is left over of them is copied each time.
_PACKED = 65_536
# zlib's code for gzip or deflate, whichever it finds.
_EITHER = 32 + zlib.MAX_WBITS


async def unpack(
    body: bytes | bytearray, hold: Callable[[int], None], limit: int, too_large: BodyTooLarge
) -> bytearray:
    """Decompress a body, gzip or deflate; `hold` counts the bytes, and may raise.

    Raises:
        BodyTooLarge: `too_large`, as soon as the limit is exceeded.
        zlib.error: it is neither gzip nor deflate.
    """
    unpacked = bytearray()
    async for piece in _pieces(memoryview(body)):
        hold(len(piece))
        unpacked += piece
        if len(unpacked) > limit:
            raise too_large
    return unpacked


async def _pieces(body: memoryview) -> AsyncIterator[bytes]:
    unpacker = zlib.decompressobj(_EITHER)
    piece = b""
    for at in range(0, len(body), _PACKED):
        left: bytes | memoryview = body[at : at + _PACKED]
        while left and not unpacker.eof:
            if at or piece:
                # zlib lets other threads run.
                piece = await asyncio.to_thread(unpacker.decompress, left, _PIECE)
            else:
                piece = unpacker.decompress(left, _FIRST)
            yield piece
            left = unpacker.unconsumed_tail
    yield unpacker.flush()
