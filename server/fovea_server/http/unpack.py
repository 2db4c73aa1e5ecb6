"""Bodies that were compressed with gzip or deflate, as they were before."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable

from fovea_preprocess.errors import BodyTooLarge

# Unpacked on the event loop, and from then on in a thread.
_FIRST, _PIECE = 65_536, 1 << 20
# Packed bytes that are looked at in one go; what is left over of them is copied each time.
_PACKED = 65_536
# What zlib calls its formats: gzip or deflate, whichever it finds.
_EITHER = 32 + zlib.MAX_WBITS


async def unpack(
    body: bytes | bytearray, hold: Callable[[int], None], limit: int, too_large: BodyTooLarge
) -> bytearray:
    """The body as it was before it was compressed.

    Args:
        body: gzip or deflate, whichever it is.
        hold: is told the size of each piece, and may refuse it.
        limit: the most bytes.
        too_large: what to raise above the limit, as soon as that is known.

    Raises:
        zlib.error: it is neither.
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
