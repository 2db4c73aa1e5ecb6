"""Answers that are kept, for requests with the same inputs.

Source: `response_cache` of model_config.proto, and the "local" cache of Triton.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

from fovea_engines.backends.base import Array
from fovea_preprocess.errors import InvalidOption
from fovea_server.scheduling.around import Around
from fovea_server.scheduling.base import Scheduler
from fovea_server.statistics import Duration, ModelStatistics
from fovea_server.v2 import byte_strings
from fovea_server.v2.messages import InferRequest, InferResponse, OutputTensor

# Bytes of a request from which hashing would hold up the event loop.
_LARGE = 64 << 10


@dataclass(slots=True)
class CacheStatistics:
    """What a cache has done, over all models.

    Attributes:
        lookups: and how long they took.
        insertions: and how long they took.
        hits: lookups that found an answer.
        misses: lookups that did not.
        evictions: answers that made room for others.
    """

    lookups: Duration = field(default_factory=Duration)
    insertions: Duration = field(default_factory=Duration)
    hits: int = 0
    misses: int = 0
    evictions: int = 0


class ResponseCache:
    """Keeps the answers that were used last; one for all models. Used on the event loop only.

    Args:
        size: bytes of tensors that it may hold.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.statistics = CacheStatistics()
        self._answers: OrderedDict[bytes, tuple[list[OutputTensor], int]] = OrderedDict()

    @classmethod
    def parse(cls, setting: str) -> ResponseCache:
        """From the value of `--cache-config`: "local,size=1048576".

        Raises:
            InvalidOption: it is something else.
        """
        kind, _, option = setting.partition(",")
        key, _, value = option.partition("=")
        if kind != "local" or key != "size" or not value.isdecimal():
            raise InvalidOption(
                f"--cache-config is {setting!r}; it must be local,size=BYTES, "
                "for instance local,size=104857600"
            )
        return cls(int(value))

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, key: bytes) -> list[OutputTensor] | None:
        """The outputs that were kept; None if there are none."""
        began_ns = time.monotonic_ns()
        found = self._answers.get(key)
        if found is None:
            self.statistics.misses += 1
        else:
            self.statistics.hits += 1
            self._answers.move_to_end(key)
        self.statistics.lookups.add(time.monotonic_ns() - began_ns)
        return None if found is None else found[0]

    def keep(self, key: bytes, outputs: list[OutputTensor]) -> None:
        """Keep outputs, at the cost of those that were not used for longest."""
        began_ns = time.monotonic_ns()
        size = sum(_size(tensor.array) for tensor in outputs)
        if size <= self.size:
            self._drop(key)
            self._answers[key] = ([_alone(tensor) for tensor in outputs], size)
            self.used += size
            while self.used > self.size:
                self.statistics.evictions += 1
                self._drop(next(iter(self._answers)))
        self.statistics.insertions.add(time.monotonic_ns() - began_ns)

    def forget(self, prefix: bytes) -> None:
        ...

    def _drop(self, key: bytes) -> None:
        if key in self._answers:
            self.used -= self._answers.pop(key)[1]
