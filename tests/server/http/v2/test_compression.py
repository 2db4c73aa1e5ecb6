"""Which encoding an answer gets."""

import asyncio
import zlib

import pytest

from fovea_server.http.messages import Response
from fovea_server.http.v2.answers import compress


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"deflate, gzip", b"deflate"),
        (b"deflate;q=0.5, gzip;q=0.6", b"gzip"),
        (b"br;q=1.0, gzip;q=0.1", b"gzip"),
        (b"gzip;q=0", None),
        (b"gzip;q=nonsense", None),
        (b"identity, gzip;q=0.9", None),
        (b"*", None),
        (b"\xff,,;q=,", None),
    ],
)
def test_the_best_that_is_known(accepted, encoding):
    body = [b"head", memoryview(bytes(100_000))]
    answer = Response(body=list(body))
    asyncio.run(compress(answer, accepted))
    if encoding is None:
        assert answer.body == body
        assert answer.headers == []
    else:
        assert answer.headers == [(b"content-encoding", encoding)]
        unpacked = zlib.decompress(b"".join(answer.body), 32 + zlib.MAX_WBITS)
        assert unpacked == b"".join(body)
