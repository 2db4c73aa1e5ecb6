"""What a soak has sent, and what was wrong with the answers."""

from __future__ import annotations

from collections import Counter

from soak_requests import Request


class Tally:
    """Counts down to the end of a run.

    Attributes:
        counts: requests and other deeds, by kind.
        images: requests with an image, among those over HTTP.
        errors: what was not as it should be, in words.
        left: how many are still to be sent.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.images = 0
        self.errors: list[str] = []
        self.left = 0

    def more(self, kind: str, number: int = 1) -> bool:
        """Whether to go on; counts what is sent next."""
        if self.left <= 0:
            return False
        self.left -= number
        self.counts[kind] += number
        return True

    def expect(self, request: Request, status: int, answer: bytes) -> None:
        """Look at an answer."""
        self.images += request.image
        if status != request.status or request.holds not in answer:
            self.errors.append(f"{request.sent[:200]!r} was answered {status} {answer[:200]!r}")
