"""Weighs JSON before it is parsed, and parses large documents without holding others up.

Parsing holds the interpreter's lock: nothing else runs meanwhile, in any thread. So a document may
have so many values and no more, and large ones are parsed one after the other, in one thread.
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
"""Weight of a document; see `weight`."""
MAX_OF_TENSORS = 4 << 20
"""Weight of a document with tensors: four million numbers."""
MAX_OF_STRANGERS = 1 << 14
"""Weight of a document whose sender has shown no key yet."""
LARGE = 262_144
"""Bytes of JSON that take longer to parse than the event loop should stand still."""

# The time and the memory of each, in those of a number: a list, an object, a key.
_WEIGHTS = ((b",", 1), (b"[", 6), (b"{", 6), (b":", 10))
_HEAVIEST = 10
# Bytes that a number takes in memory, and its place in the tree that orjson reads first. Beside
# that tree it keeps a copy of the text.
_NUMBER = 48
# Others run between two windows.
_WINDOW = 1 << 20


class JsonThread:
    """The thread in which large documents are parsed; `budget` counts what they take."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._turn = asyncio.Semaphore(1)
        # One thread also where a client has left: what it sent is parsed to the end.
        self._thread = ThreadPoolExecutor(1, "json")

    async def run(
        self, text: bytes | bytearray, work: Callable[[], T], most: int = MAX_WEIGHT
    ) -> T:
        """Await `work`, which parses `text`; a short one is parsed here and now.

        Raises:
            BodyTooLarge: the document weighs more than `most`.
            QueueFull: there is no memory for it.
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
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def weight(text: bytes | bytearray) -> int:
    """Count values, lists, objects and keys by what they cost; commas in strings count, too."""
    return sum(
        each * text.count(mark, at, at + _WINDOW)
        for at in range(0, len(text), _WINDOW)
        for mark, each in _WEIGHTS
    )


def check_weight(text: bytes | bytearray, most: int = MAX_WEIGHT) -> int:
    """Return the weight of a document, before it is parsed.

    Raises:
        BodyTooLarge: it is over `most`.
    """
    if (greatest := len(text) * _HEAVIEST) <= most:
        return greatest
    found = weight(text)
    if found > most:
        raise BodyTooLarge(
            f"the JSON has too many values: they count {found:,}, and {most:,} is the limit, where "
            "a value counts 1, a list or an object 6, and a key 10; send less at once, and tensors "
            "in binary"
        )
    return found


def parse_json(text: bytes | bytearray, most: int = MAX_WEIGHT) -> Any:
    """Parse a document that weighs at most `most`.

    orjson itself refuses what is nested deeper than 1024.

    Raises:
        BodyTooLarge: it weighs more.
        orjson.JSONDecodeError: it is no JSON.
    """
    check_weight(text, most)
    return orjson.loads(text)
