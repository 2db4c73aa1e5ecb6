"""Limits how many large images are decoded at once, and shares memory fairly between clients."""

from __future__ import annotations

import asyncio
from bisect import insort
from typing import Self

from fovea_preprocess.header import decoding_bytes
from fovea_preprocess.image import DecodedImage
from fovea_server.byte_budget import ByteBudget
from fovea_server.tensors.messages import SentImage

# Sizes in bytes of the memory that decoding takes. Images up to SMALL are decoded without a limit.
# Images above LARGE take seconds, so at most half of the cores decode such images at the same time.
SMALL, LARGE = 24 << 20, 128 << 20
# Number of kinds. If there are more, the turns of inactive clients are removed.
_MAX_KINDS = 4096


class DecodeLimiter:
    """Counts the memory of decoding in the budget, and limits how many images are decoded at once.

    Clients share the memory by start-time fair queueing (Goyal, Vin and Cheng, 1996). The images of
    one client are divided into kinds by size, and each kind has its own turn. An image waits until
    its bytes fit into the budget. An image larger than the budget waits until no other image is in
    memory. Use this class on the event loop only.

    Args:
        budget: memory budget of the server.
        cores: number of processor cores that decode.
        most_pixels: largest number of pixels of an image. Larger images are
            rejected before decoding.
    """

    def __init__(self, budget: ByteBudget, *, cores: int, most_pixels: int) -> None:
        self._budget = budget
        self._most_pixels = most_pixels
        # The first limit is larger than the second, so an image of medium size need not wait for
        # large images.
        self._most, self._most_large = cores + 1, max(1, cores // 2)
        self._decoding = self._large = 0
        self._waiting: list[Place] = []
        # Turn of the image that was admitted last, and the next turn of each kind of image.
        self._now = 0
        self._next: dict[tuple[str, int], int] = {}

    def place(self, client: str, image: SentImage) -> Place | None:
        """Return a place in the queue for a client's image, or None if it is small or decoded."""
        if isinstance(image, DecodedImage):
            return None
        return self.place_for(client, decoding_bytes(image, self._most_pixels))

    def place_for(self, client: str, size: int) -> Place | None:
        """Return a place in the queue for work with `size` bytes, or None if `size` is small."""
        return Place(self, client, size) if size > SMALL else None

    def enter(self, place: Place) -> None:
        """Add an image to the queue, and admit all images that may be decoded now."""
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
            # Give this turn to the next image of the same kind from this client.
            self._next[place.kind] = place.turn
        self._admit()

    def resize(self, place: Place, size: int, *, decoded: bool) -> None:
        """Change the size of an admitted image in the budget.

        If `decoded` is True, its decoding ends.
        """
        self._budget.pixels += size - place.held
        place.held = size
        if decoded:
            self._decoding -= 1
            self._large -= place.size > LARGE
        self._admit()

    def _admit(self) -> None:
        """Admit all images that may be decoded now.

        A smaller image may pass a large image that waits until another large image is decoded.
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
    """The place of one image in the queue.

    Enter it before decoding, and leave it after the response.

    Attributes:
        size: number of bytes that decoding takes.
        held: number of bytes that the budget counts for the image now.
        kind: ID of the client, and the number of bits of `size`.
        turn: position in the fair queue.
        admitted: future that is done when the image may be decoded.
    """

    __slots__ = ("_decode_limiter", "_decoded", "admitted", "held", "kind", "size", "turn")

    def __init__(self, decode_limiter: DecodeLimiter, client: str, size: int) -> None:
        self._decode_limiter, self.size = decode_limiter, size
        self.kind = client, size.bit_length()
        self.held = self.turn = 0
        self._decoded = False
        self.admitted: asyncio.Future[None]

    def end_decoding(self, left: int) -> None:
        """End the decoding.

        `left` is the number of bytes that stay in use until the response is sent.
        """
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
                # The image was admitted just before the cancellation, so it is not in the queue any
                # more.
                self._leave()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._decode_limiter.resize(self, 0, decoded=not self._decoded)
