"""The parts that packages add to a running server: entry points of `fovea.services` make them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, runtime_checkable

from fovea_engines.detect.options import PredictOptions
from fovea_preprocess.errors import FoveaError
from fovea_server.models.model import ServedModel
from fovea_server.statistics.family import Family
from fovea_server.tensors.image_messages import ImageResult

T = TypeVar("T")


class ServerPart(Protocol):
    """A part has routes, metrics, and work of its own while requests are answered."""

    def routes(self) -> object:
        """Make the `APIRouter`, which is asked for once."""

    def families(self) -> Iterable[Family]:
        """Return the metrics."""

    async def start(self) -> None:
        """Begin, before the first request."""

    async def stop(self) -> None:
        """End, after the last request."""


@runtime_checkable
class HasFronts(Protocol):
    """A part may also take requests that need more than an application has of them."""

    def fronts(self) -> Sequence[object]:
        """Return its `Front`s."""


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


FrameTurnOf = Callable[[str, PredictOptions, int], FrameTurn]
"""Makes the turn of a request with `track`: name of the model, options, number of images."""
