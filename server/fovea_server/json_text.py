"""Limits the weight of JSON documents, and parses large documents in a separate thread.

The weight of a document estimates the time and memory that parsing takes. No other thread runs
while a document is parsed, because the parser holds the GIL. Therefore the weight is limited, and
large documents are parsed one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson

from fovea_preprocess.errors import BodyTooLarge
from fovea_server.byte_budget import ByteBudget

T = TypeVar("T")

MAX_WEIGHT = 1 << 20
"""Largest weight of a document. For the unit see `weight`."""
MAX_OF_TENSORS = 4 << 20
"""Largest weight of a document that contains tensors: four million numbers."""
MAX_OF_STRANGERS = 1 << 14
"""Largest weight of a document from a client that has not authenticated yet."""
LARGE = 262_144
"""Size in bytes. Larger documents are parsed in the thread, smaller ones on the event loop."""

# Weights of the characters that stand for values, lists, objects and keys. A weight of 1 is the
# time and memory that parsing a number takes.
_WEIGHTS = ((b",", 1), (b"[", 6), (b"{", 6), (b":", 10))
_HEAVIEST = 10
# Memory in bytes that orjson takes for a number: the Python object and a node in its tree. orjson
# also copies the text, whose size is added separately.
_NUMBER = 48
# Number of bytes in which characters are counted at once. Other threads can run between two steps.
_WINDOW = 1 << 20


class JsonThread:
    """The thread that parses large documents. `budget` counts the memory that parsing takes."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._turn = asyncio.Semaphore(1)
        # Use one thread, so that documents are parsed one after the other. If a client disconnects,
        # its document is parsed to the end before the next document.
        self._thread = ThreadPoolExecutor(1, "json")

    async def run(
        self, text: bytes | bytearray, work: Callable[[], T], most: int = MAX_WEIGHT
    ) -> T:
        """Return the result of `work`, which parses `text`.

        A text of at most `LARGE` bytes is parsed on the event loop, a larger text in the thread.

        Raises:
            BodyTooLarge: the weight of the document exceeds `most`.
            QueueFull: the memory budget has no room for parsing.
        """
        if len(text) <= LARGE:
            check_weight(text, most)
            return work()
        loop = asyncio.get_running_loop()
        async with self._turn:
            weighed = await loop.run_in_executor(self._thread, check_weight, text, most)
            with self._budget.body() as hold:
                hold(weighed * _NUMBER + len(text))
                return await loop.run_in_executor(self._thread, work)

    def close(self) -> None:
        """Stop the thread, and cancel documents that wait for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def weight(text: bytes | bytearray) -> int:
    """Return the weight of a document.

    The characters `,`, `[`, `{` and `:` are also counted inside strings.
    """
    return sum(
        each * text.count(mark, at, at + _WINDOW)
        for at in range(0, len(text), _WINDOW)
        for mark, each in _WEIGHTS
    )


def check_weight(text: bytes | bytearray, most: int = MAX_WEIGHT) -> int:
    """Return the weight of a document. For a short document, return an upper bound.

    Raises:
        BodyTooLarge: the weight exceeds `most`.
    """
    if (greatest := len(text) * _HEAVIEST) <= most:
        return greatest
    found = weight(text)
    if found > most:
        raise BodyTooLarge(
            f"the JSON is too large: its weight is {found:,}, and the limit is {most:,} (a value "
            "counts 1, a list or an object 6, a key 10); send less per request, and tensors as "
            "binary data"
        )
    return found


def parse_json(text: bytes | bytearray, most: int = MAX_WEIGHT) -> Any:
    """Parse a JSON document whose weight is at most `most`.

    Raises:
        BodyTooLarge: the weight exceeds `most`.
        orjson.JSONDecodeError: the text is not JSON, or is nested deeper than 1024 levels.
    """
    check_weight(text, most)
    return orjson.loads(text)
