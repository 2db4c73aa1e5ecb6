"""The response cache: answers for requests with the same inputs, and a scheduler that uses it.

Source: `response_cache` of model_config.proto, and the "local" cache of Triton.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Self

from fovea_engines.session import Array
from fovea_preprocess.errors import InvalidOption
from fovea_server.scheduling.base import Scheduler, SchedulerWrapper
from fovea_server.scheduling.contract import Contract
from fovea_server.statistics.model import Duration, ModelStatistics
from fovea_server.tensors.messages import InferRequest, InferResponse, OutputTensor
from fovea_server.tensors.wire import wire

# Memory of an answer without outputs (with its key), and of an output without elements; measured.
_ANSWER_BYTES, _OUTPUT_BYTES = 512, 512
# Hashing a request of this many bytes would block the event loop.
_LARGE = 64 << 10


@dataclass(slots=True)
class CacheStatistics:
    """Counters of a cache, over all models; evictions are answers dropped for newer ones."""

    lookups: Duration = field(default_factory=Duration)
    insertions: Duration = field(default_factory=Duration)
    hits: int = 0
    misses: int = 0
    evictions: int = 0


class _Kept(NamedTuple):
    owner: bytes
    size: int
    answer: InferResponse


class ResponseCache:
    """Keeps the answers used last, up to `size` bytes, for all models; safe in any thread."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.statistics = CacheStatistics()
        self._lock = threading.Lock()
        self._answers: OrderedDict[bytes, _Kept] = OrderedDict()

    @classmethod
    def parse(cls, setting: str) -> Self:
        """Parse the value of `--cache-config`: "local,size=1048576"."""
        kind, _, option = setting.partition(",")
        key, _, size = option.partition("=")
        if kind != "local" or key != "size" or not size.isdecimal():
            raise InvalidOption(
                f"--cache-config is {setting!r}; it must be local,size=BYTES, "
                "for instance local,size=104857600"
            )
        return cls(int(size))

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, key: bytes) -> InferResponse | None:
        """Look an answer up; None if there is none."""
        began_ns = time.monotonic_ns()
        with self._lock:
            kept = self._answers.get(key)
            if kept is None:
                self.statistics.misses += 1
            else:
                self.statistics.hits += 1
                self._answers.move_to_end(key)
            self.statistics.lookups.add(time.monotonic_ns() - began_ns)
        return None if kept is None else kept.answer

    def keep(self, owner: bytes, key: bytes, answer: InferResponse) -> None:
        """Keep an answer, and drop the least recently used ones where the cache is full.

        The answer is copied where it shares its memory; `owner` identifies the model.
        """
        began_ns = time.monotonic_ns()
        size = _ANSWER_BYTES + sum(_OUTPUT_BYTES + _bytes(t.array) for t in answer.outputs)
        with self._lock:
            if size <= self.size and key not in self._answers:
                while self.used + size > self.size:
                    _, oldest = self._answers.popitem(last=False)
                    self.used -= oldest.size
                    self.statistics.evictions += 1
                outputs = [_own(tensor) for tensor in answer.outputs]
                own = InferResponse(answer.model_name, answer.model_version, outputs)
                self._answers[key] = _Kept(owner, size, own)
                self.used += size
            self.statistics.insertions.add(time.monotonic_ns() - began_ns)

    def forget(self, owner: bytes) -> None:
        """Drop all answers of a model that is no longer served."""
        with self._lock:
            for key in [key for key, kept in self._answers.items() if kept.owner == owner]:
                self.used -= self._answers.pop(key).size


def _bytes(array: Array) -> int:
    if array.dtype == object:
        return array.nbytes + sum(map(sys.getsizeof, array.ravel().tolist()))
    return array.nbytes


def _own(tensor: OutputTensor) -> OutputTensor:
    """Copy a tensor that is a view: a row must not keep its whole batch alive."""
    array = tensor.array if tensor.array.base is None else tensor.array.copy()
    return OutputTensor(tensor.name, tensor.datatype, array)


class CachedScheduler(SchedulerWrapper):
    """Answers repeated requests from the cache, until the model is loaded again.

    Requests that do not fit the contract skip the cache.
    """

    def __init__(
        self,
        inside: Scheduler,
        contract: Contract,
        cache: ResponseCache,
        statistics: ModelStatistics,
    ) -> None:
        super().__init__(inside)
        self._contract = contract
        self._cache = cache
        self._statistics = statistics

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request from the cache, or run it and keep the answer."""
        with self.gate.open_for(request):
            return await self._answer(request)

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests, then stop."""
        super().close(timeout_s)
        self._cache.forget(self._contract.identity)

    async def _answer(self, request: InferRequest) -> InferResponse:
        arrived_ns = time.monotonic_ns()
        await self._contract.checked(request)
        identity = self._inside.identity
        if sum(tensor.data.nbytes for tensor in request.inputs) < _LARGE:
            key = _key(identity, request)
        else:
            key = await asyncio.to_thread(_key, identity, request)
        looking_ns = time.monotonic_ns()
        found = self._cache.find(key)
        found_ns = time.monotonic_ns()
        if found is not None:
            waited_ns, lookup_ns = looking_ns - arrived_ns, found_ns - looking_ns
            self._statistics.hit(found_ns - arrived_ns, waited_ns, lookup_ns)
            return InferResponse(
                found.model_name, found.model_version, list(found.outputs), request.id
            )
        response = await self._inside.infer(request)
        keeping_ns = time.monotonic_ns()
        self._cache.keep(self._contract.identity, key, response)
        self._statistics.missed(found_ns - looking_ns + time.monotonic_ns() - keeping_ns)
        return response


def _key(identity: bytes, request: InferRequest) -> bytes:
    asked = sorted({output.name for output in request.outputs})
    digest = blake2b(identity, digest_size=16)
    digest.update(repr(asked).encode())
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        # Lengths precede contents, so that different requests cannot give the same digest input.
        digest.update(repr((tensor.name, tensor.datatype, tensor.shape)).encode())
        sent = tensor.data
        if isinstance(sent, memoryview):
            data: bytes | memoryview = sent
        else:
            data = wire(OutputTensor(tensor.name, tensor.datatype, sent))
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.digest()
