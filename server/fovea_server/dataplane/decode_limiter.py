"""Lets images that take much memory to decode in, a few at a time, client by client."""

from __future__ import annotations

import asyncio
from bisect import insort
from typing import Self

from fovea_preprocess.header import decoding_bytes
from fovea_preprocess.image import DecodedImage
from fovea_server.byte_budget import ByteBudget
from fovea_server.tensors.messages import SentImage

# Bytes that decoding takes. Most images are small, and pass; of those over the second number,
# which take seconds, some cores decode none.
SMALL, LARGE = 24 << 20, 128 << 20
# Clients that are gone are forgotten beyond these.
_MAX_KINDS = 4096


class DecodeLimiter:
    """Counts the bytes of decoding in the budget, and bounds how many images decode at once.

    Clients share it by bytes, and so do small and large images of one client: each kind has its
    turns, by start-time fair queueing (Goyal, Vin and Cheng, 1996). An image waits until it fits,
    and one that fits nowhere until it is alone. It belongs to the event loop.

    Args:
        budget: of all bytes that are held.
        cores: that decode.
        most_pixels: of an image; larger ones are refused before they are decoded.
    """

    def __init__(self, budget: ByteBudget, *, cores: int, most_pixels: int) -> None:
        self._budget = budget
        self._most_pixels = most_pixels
        # There is always room for one that is not large.
        self._most, self._most_large = cores + 1, max(1, cores // 2)
        self._decoding = self._large = 0
        self._waiting: list[Place] = []
        # The turn that began last, and for each kind of image the turn of its next one.
        self._now = 0
        self._next: dict[tuple[str, int], int] = {}

    def place(self, client: str, image: SentImage) -> Place | None:
        """Make the place of a client's image; None for a small or decoded one, which needs none."""
        if isinstance(image, DecodedImage):
            return None
        return self.place_for(client, decoding_bytes(image, self._most_pixels))

    def place_for(self, client: str, size: int) -> Place | None:
        """Make a place for work of so many bytes; None for few."""
        return Place(self, client, size) if size > SMALL else None

    def enter(self, place: Place) -> None:
        """Let an image wait for its turn, or begin it."""
        place.turn = max(self._now, self._next.get(place.kind, 0))
        self._next[place.kind] = place.turn + place.size
        if len(self._next) > _MAX_KINDS:
            self._next = {kind: turn for kind, turn in self._next.items() if turn > self._now}
        insort(self._waiting, place, key=lambda each: each.turn)
        self._admit()

    def withdraw(self, place: Place) -> None:
        """Give up the wait of an image."""
        self._waiting.remove(place)
        if self._next.get(place.kind) == place.turn + place.size:
            # The next one takes its turn.
            self._next[place.kind] = place.turn
        self._admit()

    def resize(self, place: Place, size: int, *, decoded: bool) -> None:
        """Count other bytes for an image that is inside; one that is `decoded` ends its turn."""
        self._budget.pixels += size - place.held
        place.held = size
        if decoded:
            self._decoding -= 1
            self._large -= place.size > LARGE
        self._admit()

    def _admit(self) -> None:
        """Let in all that fit; a small image passes a large one that waits for large ones."""
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
    """The place of one image in a room: entered before it is decoded, left when it is answered.

    Attributes:
        size: bytes that decoding takes.
        held: bytes that are counted now.
        kind: images of one client, and of about one size.
        turn: its place in the order of those that wait.
        admitted: done once it may be decoded.
    """

    __slots__ = ("_decode_limiter", "_decoded", "admitted", "held", "kind", "size", "turn")

    def __init__(self, decode_limiter: DecodeLimiter, client: str, size: int) -> None:
        self._decode_limiter, self.size = decode_limiter, size
        self.kind = client, size.bit_length()
        self.held = self.turn = 0
        self._decoded = False
        self.admitted: asyncio.Future[None]

    def end_decoding(self, left: int) -> None:
        """End its turn: `left` of the bytes that decoding took are still held."""
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
                # It was let in just then.
                self._leave()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._decode_limiter.resize(self, 0, decoded=not self._decoded)
