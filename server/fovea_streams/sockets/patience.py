"""A client may be silent, send slowly, or not read, but not for ever."""

from __future__ import annotations

from enum import Enum, auto

from fovea_server.byte_budget import SLOWEST

PING_S = 20.0
LAST_S = 2.0
"""At a stop, for a client that does not read, and then for one that does not close."""


class Judgement(Enum):
    """A judgement says what is due for a client."""

    LET = auto()
    """Let it be."""
    PING = auto()
    REFUSE = auto()
    """Close: its message comes too slowly."""
    ABORT = auto()
    """It does not read, or does not answer a ping."""


class Patience:
    """Judges a client every second; times are in seconds of the event loop."""

    def __init__(self, patience_s: float, now: float) -> None:
        self._patience_s = patience_s
        self._heard = self._read_at = now
        self._pinged = False
        self._came = self._unsent = 0
        self._window = now, 0
        """Time at which the message that arrives was last judged, and the bytes until then."""

    def hear(self, now: float, size: int) -> None:
        """Bytes have come."""
        self._heard, self._pinged = now, False
        self._came += size

    def judge(
        self, now: float, unsent: int, *, arriving: bool, paused: bool, ending: bool
    ) -> Judgement:
        """Judge a client.

        Args:
            now: by the event loop.
            unsent: bytes that it has not read.
            arriving: a message of it is not whole.
            paused: it is not read, so neither its pongs nor its bytes arrive.
            ending: the server is about to stop.
        """
        if not unsent or unsent < self._unsent:
            self._read_at = now
        self._unsent = unsent
        if now - self._read_at > (min(LAST_S, self._patience_s) if ending else self._patience_s):
            return Judgement.ABORT
        if paused:
            self._heard, self._window = now, (now, self._came)
        elif not arriving:
            self._window = now, self._came
            return self._silence(now)
        elif now - self._window[0] >= self._patience_s:
            came, self._window = self._came - self._window[1], (now, self._came)
            if came < SLOWEST * self._patience_s:
                return Judgement.REFUSE
        return Judgement.LET

    def _silence(self, now: float) -> Judgement:
        silent_s = now - self._heard
        if silent_s < PING_S:
            return Judgement.LET
        if self._pinged:
            return Judgement.ABORT if silent_s >= 2 * PING_S else Judgement.LET
        self._pinged = True
        return Judgement.PING
