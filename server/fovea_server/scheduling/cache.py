"""The cache for responses to requests with equal inputs, and the scheduler that uses the cache.

Source: `response_cache` of model_config.proto, and the "local" cache of Triton.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, Self

from fovea_engines.session import Array
from fovea_preprocess.errors import FoveaError, InvalidOption
from fovea_preprocess.image import DecodedImage
from fovea_server.observability.model_statistics import NO_TIMES, Duration, ModelStatistics
from fovea_server.scheduling.base import Scheduler, SchedulerWrapper
from fovea_server.scheduling.model_io import ModelIO
from fovea_server.tensors.messages import (
    ImageRequest,
    ImageResult,
    InferRequest,
    InferResponse,
    OutputTensor,
    SentImage,
)
from fovea_server.tensors.wire import wire

# Measured memory, in bytes: for a response without outputs, including its key, and for an output
# without elements.
_ANSWER_BYTES, _OUTPUT_BYTES = 512, 512
# Requests of at least this many bytes are hashed in a thread, so that they do not block the event
# loop.
_LARGE = 64 << 10


@dataclass(slots=True)
class CacheStatistics:
    """Counters of the cache, over all models.

    An eviction is a response that was dropped to make room for a newer response.
    """

    lookups: Duration = field(default_factory=Duration)
    insertions: Duration = field(default_factory=Duration)
    hits: int = 0
    misses: int = 0
    evictions: int = 0


class _Kept(NamedTuple):
    owner: bytes
    size: int
    answer: InferResponse | ImageResult


class ResponseCache:
    """Keeps the most recently used responses of all models, `size` bytes at most; thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.statistics = CacheStatistics()
        self._lock = threading.Lock()
        self._answers: OrderedDict[bytes, _Kept] = OrderedDict()

    @classmethod
    def parse(cls, setting: str) -> Self:
        """Parse the value of `--cache-config`, for example "local,size=1048576" (bytes).

        Raises:
            InvalidOption: the value cannot be parsed.
        """
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

    def find(self, key: bytes) -> InferResponse | ImageResult | None:
        """Return the cached response for a key; None if the cache has no response for it."""
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

    def keep(self, owner: bytes, key: bytes, answer: InferResponse | ImageResult) -> None:
        """Cache a response, and drop the least recently used responses if the cache is full.

        Arrays that are views of larger arrays are copied.

        Args:
            owner: identity of the model, for `forget`.
            key: hash of the request's inputs and options.
            answer: the response.
        """
        began_ns = time.monotonic_ns()
        size = _size(answer)
        with self._lock:
            if size <= self.size and key not in self._answers:
                while self.used + size > self.size:
                    _, oldest = self._answers.popitem(last=False)
                    self.used -= oldest.size
                    self.statistics.evictions += 1
                self._answers[key] = _Kept(owner, size, _copy_answer(answer))
                self.used += size
            self.statistics.insertions.add(time.monotonic_ns() - began_ns)

    def forget(self, owner: bytes) -> None:
        """Drop all responses of a model that is no longer served."""
        with self._lock:
            for key in [key for key, kept in self._answers.items() if kept.owner == owner]:
                self.used -= self._answers.pop(key).size


def _size(answer: InferResponse | ImageResult) -> int:
    return _ANSWER_BYTES + sum(_OUTPUT_BYTES + _bytes(array) for array in _arrays(answer))


def _arrays(answer: InferResponse | ImageResult) -> list[Array]:
    if isinstance(answer, InferResponse):
        return [tensor.array for tensor in answer.outputs]
    arrays = list((answer.tensors or {}).values())
    if answer.found is not None:
        arrays += answer.found.arrays
    return arrays


def _bytes(array: Array) -> int:
    if array.dtype == object:
        return array.nbytes + sum(map(sys.getsizeof, array.ravel().tolist()))
    return array.nbytes


def _copy_answer(answer: InferResponse | ImageResult) -> InferResponse | ImageResult:
    """Return a copy of a response that does not keep the memory of its whole batch alive."""
    if isinstance(answer, ImageResult):
        # The arrays of an image's result are not views, so they need no copy. The times and the
        # encoded form are valid for the first request only.
        return replace(answer, times=NO_TIMES, encoded=b"")
    outputs = [
        replace(tensor, array=tensor.array if tensor.array.base is None else tensor.array.copy())
        for tensor in answer.outputs
    ]
    return InferResponse(answer.model_name, answer.model_version, outputs)


class CachedScheduler(SchedulerWrapper):
    """Responds to repeated requests from the cache, until the model is reloaded.

    Models with sequence batching have no cache.
    """

    def __init__(
        self,
        inside: Scheduler,
        model_io: ModelIO,
        cache: ResponseCache,
        statistics: ModelStatistics,
    ) -> None:
        super().__init__(inside)
        self._model_io = model_io
        self._cache = cache
        self._statistics = statistics

    async def infer(self, request: InferRequest) -> InferResponse:
        """Return the response from the cache, or run the request and cache its response."""
        with self.gate.open_for(request):
            return await self._answer(request)

    def close(self, timeout_s: float) -> None:
        """Finish accepted requests, then drop this model's responses from the cache."""
        super().close(timeout_s)
        self._cache.forget(self._model_io.identity)

    async def predict(self, request: ImageRequest) -> list[ImageResult | FoveaError]:
        """Return cached results of images, and run and cache the images without a cached result."""
        if request.keep_pixels:
            return await self._inside.predict(request)
        arrived_ns = time.monotonic_ns()
        with self.gate.open_for(request):
            about = self._inside.identity + repr(request.options).encode()
            keys = [await _image_digest(about, image) for image in request.images]
            looked = [self._look_up(key, arrived_ns) for key in keys]
            missing = [at for at, (found, _) in enumerate(looked) if found is None]
            computed: list[ImageResult | FoveaError] = []
            if missing:
                rest = replace(request, images=[request.images[at] for at in missing])
                computed = await self._inside.predict(rest)
            answers = [await _again(found, request) for found, _ in looked]
            for at, answer in zip(missing, computed, strict=True):
                answers[at] = answer
                if isinstance(answer, ImageResult):
                    self._keep(keys[at], answer, looked[at][1])
        return [answer for answer in answers if answer is not None]

    async def _answer(self, request: InferRequest) -> InferResponse:
        arrived_ns = time.monotonic_ns()
        await self._model_io.check_request(request)
        size = sum(tensor.data.nbytes for tensor in request.inputs)
        key = await _compute_digest(partial(_key, self._inside.identity, request), size)
        found, lookup_ns = self._look_up(key, arrived_ns)
        if isinstance(found, InferResponse):
            return replace(found, outputs=list(found.outputs), id=request.id)
        response = await self._inside.infer(request)
        self._keep(key, response, lookup_ns)
        return response

    def _look_up(
        self, key: bytes, arrived_ns: int
    ) -> tuple[InferResponse | ImageResult | None, int]:
        """Return the cached response and the duration of the lookup in nanoseconds.

        The response is None if the cache has none.
        """
        looking_ns = time.monotonic_ns()
        found = self._cache.find(key)
        found_ns = time.monotonic_ns()
        lookup_ns = found_ns - looking_ns
        if found is not None:
            self._statistics.count_cache_hit(
                found_ns - arrived_ns, looking_ns - arrived_ns, lookup_ns
            )
        return found, lookup_ns

    def _keep(self, key: bytes, answer: InferResponse | ImageResult, lookup_ns: int) -> None:
        keeping_ns = time.monotonic_ns()
        self._cache.keep(self._model_io.identity, key, answer)
        self._statistics.count_cache_miss(lookup_ns + time.monotonic_ns() - keeping_ns)


async def _again(
    found: InferResponse | ImageResult | None, request: ImageRequest
) -> ImageResult | FoveaError | None:
    """Return a cached result in the form that this request needs; None if `found` is None."""
    if not isinstance(found, ImageResult):
        return None
    answer = replace(found, times=NO_TIMES, batch=0)
    if request.encode is not None:
        # Encoding boxes takes microseconds, so it runs on the event loop. Raw outputs may have any
        # size, so they are encoded in a thread.
        heavy = answer.tensors is not None
        encode = request.encode
        answer.encoded = await asyncio.to_thread(encode, answer) if heavy else encode(answer)
    return answer


async def _compute_digest(digest: Callable[[], bytes], size: int) -> bytes:
    return digest() if size < _LARGE else await asyncio.to_thread(digest)


async def _image_digest(about: bytes, image: SentImage) -> bytes:
    size = image.pixels.nbytes if isinstance(image, DecodedImage) else len(image)
    return await _compute_digest(partial(_image_key, about, image), size)


def _image_key(about: bytes, image: SentImage) -> bytes:
    # The BLAKE2 parameter `person` separates keys of images from keys of tensors, because both
    # begin with the model's identity.
    if isinstance(image, DecodedImage):
        digest = blake2b(about, digest_size=16, person=b"pixels")
        digest.update(repr(image.pixels.shape).encode())
        digest.update(image.pixels.tobytes())
    else:
        digest = blake2b(about, digest_size=16, person=b"image")
        digest.update(image)
    return digest.digest()


def _key(identity: bytes, request: InferRequest) -> bytes:
    names = sorted({output.name for output in request.outputs})
    digest = blake2b(identity, digest_size=16)
    digest.update(repr(names).encode())
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        # Each content is preceded by its length, so that different requests cannot give equal
        # digest inputs.
        digest.update(repr((tensor.name, tensor.datatype, tensor.shape)).encode())
        sent = tensor.data
        if isinstance(sent, memoryview):
            data: bytes | memoryview = sent
        else:
            data = wire(OutputTensor(tensor.name, tensor.datatype, sent))
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.digest()
