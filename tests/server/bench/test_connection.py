"""A connection reads answers however they arrive."""

import asyncio

import pytest

from fovea_server.bench.sender import Connection

PIECES = {
    "whole": [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nboxes"],
    "byte by byte": [bytes([b]) for b in b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nboxes"],
    "chunked": [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo",
        b"\r\n3\r\nxes\r\n0\r\n\r\n",
    ],
}


async def asked(pieces, times=1):
    async def answer(reader, writer):
        for _ in range(times):
            if not await reader.readuntil(b"\r\n\r\n"):
                return
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        connection = await Connection.connect("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            return [await connection.ask(b"GET / HTTP/1.1\r\n\r\n") for _ in range(times)]
        finally:
            connection.close()


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES.keys())
def test_an_answer_is_read(pieces):
    assert asyncio.run(asked(pieces, times=2)) == [(200, b"boxes", 0.0)] * 2


def test_an_answer_says_when_to_ask_again():
    head = b"HTTP/1.1 429 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    assert asyncio.run(asked([head])) == [(429, b"", 7.0)]


def test_who_hangs_up_is_told_of():
    for pieces in ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nboxes"], [b"SSH-2.0\r\n"], []):
        with pytest.raises(ConnectionResetError):
            asyncio.run(asked(pieces))
