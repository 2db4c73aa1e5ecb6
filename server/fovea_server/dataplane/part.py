"""The places where packages take part in a request on its way through the data plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from fovea_engines.detect.options import PredictOptions
from fovea_preprocess.errors import FoveaError
from fovea_server.models.model import ServedModel
from fovea_server.tensors.image_messages import ImageResult
from fovea_server.tensors.messages import TritonTrace
from fovea_server.tensors.regions import Regions

T = TypeVar("T")


class FrameTurn(AbstractContextManager[None], Protocol):
    """The place of a request's images among the frames of a stream, while it is entered."""

    keeps_pixels: bool
    """The tracker looks at the upright images."""

    async def identify(self, results: Sequence[ImageResult | FoveaError]) -> None:
        """Wait until the frames before are over, and give the objects of these their ids."""


class CanaryTurns(Protocol):
    """Gives a share of the requests that name no version to a canary."""

    async def ask(self, model: ServedModel, answer: Callable[[ServedModel], Awaitable[T]]) -> T:
        """Choose a version for a request to a `model`, and await its answer."""


class TritonTraces(Protocol):
    """Chooses the requests whose timestamps are recorded."""

    def sample(self, model: str, version: int, request_id: str) -> TritonTrace | None:
        """Start the record of a new request; nearly always None."""


class ProtocolExtensions(Protocol):
    """Extensions of Triton's protocol, by the ability `extensions`."""

    @property
    def regions(self) -> Regions:
        """Tensors in memory that clients have registered."""

    @property
    def trace(self) -> TritonTraces:
        """Records of requests."""

    def close(self) -> None:
        """Release memory of GPUs. Calling it again does nothing."""


FrameTurnOf = Callable[[str, PredictOptions, int], FrameTurn]
"""Makes the turn of a request with `track`: name of the model, options, number of images."""
