"""Limits how many images that need much memory are decoded at once, with fair turns for clients."""

from __future__ import annotations

import asyncio
from bisect import insort
from typing import Self

from fovea_preprocess.header import decoding_bytes
from fovea_preprocess.image import DecodedImage
from fovea_server.byte_budget import ByteBudget
from fovea_server.tensors.messages import SentImage

# Bytes that decoding takes. Images up to SMALL need no turn. Images above LARGE take seconds, so
# only half of the cores may decode such images at the same time.
SMALL, LARGE = 24 << 20, 128 << 20
# Number of kinds from which the turns of inactive clients are removed.
_MAX_KINDS = 4096


class DecodeLimiter:
    """Counts the bytes of decoding in the budget, and limits how many images are decoded at once.

    Clients share the memory by start-time fair queueing (Goyal, Vin and Cheng, 1996). The small and
    the large images of one client are separate kinds with separate turns. An image waits until it
    fits; an image larger than the budget waits until no other image is decoded. Use this class on
    the event loop only.

    Args:
        budget: budget of all bytes in use.
        cores: number of processor cores that decode.
        most_pixels: largest number of pixels of an image. Larger images are
            rejected before decoding.
    """

    def __init__(self, budget: ByteBudget, *, cores: int, most_pixels: int) -> None:
        self._budget = budget
        self._most_pixels = most_pixels
        # An image that is not large always finds room beside the large ones.
        self._most, self._most_large = cores + 1, max(1, cores // 2)
        self._decoding = self._large = 0
        self._waiting: list[Place] = []
        # The turn that began last, and the next turn of each kind of image.
        self._now = 0
        self._next: dict[tuple[str, int], int] = {}

    def place(self, client: str, image: SentImage) -> Place | None:
        """Return a turn for a client's image; None for a small or decoded image."""
        if isinstance(image, DecodedImage):
            return None
        return self.place_for(client, decoding_bytes(image, self._most_pixels))

    def place_for(self, client: str, size: int) -> Place | None:
        """Return a turn for work that takes `size` bytes; None if `size` is small."""
        return Place(self, client, size) if size > SMALL else None

    def enter(self, place: Place) -> None:
        """Add an image to the queue, and admit all images that fit."""
        place.turn = max(self._now, self._next.get(place.kind, 0))
        self._next[place.kind] = place.turn + place.size
        if len(self._next) > _MAX_KINDS:
            self._next = {kind: turn for kind, turn in self._next.items() if turn > self._now}
        insort(self._waiting, place, key=lambda each: each.turn)
        self._admit()

    def withdraw(self, place: Place) -> None:
        """Remove an image from the queue."""
        self._waiting.remove(place)
        if self._next.get(place.kind) == place.turn + place.size:
            # The client's next image gets this turn.
            self._next[place.kind] = place.turn
        self._admit()

    def resize(self, place: Place, size: int, *, decoded: bool) -> None:
        """Change the bytes of an admitted image; `decoded` ends its turn."""
        self._budget.pixels += size - place.held
        place.held = size
        if decoded:
            self._decoding -= 1
            self._large -= place.size > LARGE
        self._admit()

    def _admit(self) -> None:
        """Admit all images that fit.

        A small image may pass a large one that waits for other large images.
        """
        for place in list(self._waiting):
            large = place.size > LARGE
            if self._decoding >= self._most:
                break
            if place.admitted.cancelled() or (large and self._large >= self._most_large):
                continue
            if not self._has_room(place.size):
                break
            self._waiting.remove(place)
            self._now = max(self._now, place.turn)
            self._decoding += 1
            self._large += large
            self._budget.pixels += place.size
            place.held = place.size
            place.admitted.set_result(None)
        if not self._waiting and not self._decoding:
            self._now, self._next = 0, {}

    def _has_room(self, size: int) -> bool:
        budget = self._budget
        return not budget.pixels or budget.held + budget.pixels + size <= budget.limit


class Place:
    """The turn of one image: entered before its decoding, and left after the response.

    Attributes:
        size: bytes that decoding takes.
        held: bytes in the budget now.
        kind: client, and size as a power of two.
        turn: position in the fair queue.
        admitted: done when the image may be decoded.
    """

    __slots__ = ("_decode_limiter", "_decoded", "admitted", "held", "kind", "size", "turn")

    def __init__(self, decode_limiter: DecodeLimiter, client: str, size: int) -> None:
        self._decode_limiter, self.size = decode_limiter, size
        self.kind = client, size.bit_length()
        self.held = self.turn = 0
        self._decoded = False
        self.admitted: asyncio.Future[None]

    def end_decoding(self, left: int) -> None:
        """End the turn; `left` is the number of bytes that stay in use after decoding."""
        self._decoded = True
        self._decode_limiter.resize(self, left, decoded=True)

    async def __aenter__(self) -> Self:
        self.admitted = asyncio.get_running_loop().create_future()
        self._decode_limiter.enter(self)
        try:
            await self.admitted
        except asyncio.CancelledError:
            if self.admitted.cancelled():
                self._decode_limiter.withdraw(self)
            else:
                # The image was admitted just before the cancellation.
                self._leave()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._decode_limiter.resize(self, 0, decoded=not self._decoded)
