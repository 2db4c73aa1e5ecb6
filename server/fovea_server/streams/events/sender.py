"""Sends the events of a log to one receiver: in order, and again until it has each."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

from fovea_preprocess.text import counted
from fovea_server.streams.events.log import EventLog, LoggedEvent

log = logging.getLogger(__name__)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 60.0
_BEAT_S = 10.0
_STOP_S = 2.0


class SinkFailed(Exception):
    """A receiver did not take an event; the message says why, without its address.

    Attributes:
        most_tries: after so many tries the event is given up, so that it does not hold up all that
            follow; None where the receiver is not reached, which says nothing of the event.
    """

    def __init__(self, reason: str, most_tries: int | None = None) -> None:
        super().__init__(reason)
        self.most_tries = most_tries


class Sink(Protocol):
    """A way to a receiver, entered before the first event; all of it may raise SinkFailed."""

    name: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def send(self, event: LoggedEvent) -> None:
        """Return when the receiver has it."""

    async def beat(self) -> None:
        """Notice that the way is lost while there are no events."""


class Sender:
    """Follows a log; the number of the last event that was taken is kept in a file.

    An event that the receiver refuses again and again is given up, and the next one is sent. An
    event is sent twice only where the receiver took it and the machine stopped before that was
    noted; its number is the same then.

    Attributes:
        last: the number of the last event that was taken.
        sent: events that were taken since the start.
        missed: events that the log forgot before the receiver was back.
        refused: events that were given up; `refusal` is the last of them, and why.
        reason: why it waits; "" while all is well.
    """

    def __init__(self, events: EventLog, sink: Sink, folder: Path, stream: str) -> None:
        self._events, self._sink, self._stream = events, sink, stream
        self._file = folder / f"{sink.name}.sent"
        self._busy, self._hurried = asyncio.Lock(), asyncio.Event()
        self._longest_s = _LONGEST_WAIT_S
        self.sent, self.missed, self.refused, self.reason = 0, 0, 0, ""
        self.refusal = ""
        self._tries = 0
        """Of the event under way."""
        noted = self._file.read_text() if self._file.exists() else ""
        self.last = min(int(noted), events.last) if noted.isdecimal() else events.last
        self._note(self.last)

    async def run(self) -> None:
        """Send until it is cancelled."""
        wait_s = _FIRST_WAIT_S
        while True:
            before = self.last
            try:
                async with self._sink as sink:
                    while True:
                        await self._pass_on(sink)
            except SinkFailed as error:
                self._wait_for(str(error))
            except Exception as error:  # noqa: BLE001  (whatever it is, the next attempt may work)
                self._wait_for(f"sending fails: {type(error).__name__}")
            wait_s = _FIRST_WAIT_S if self.last > before else min(2 * wait_s, self._longest_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s * random.uniform(0.5, 1)):
                    await self._hurried.wait()
            self._hurried.clear()

    def hurry(self) -> None:
        """Try again now, and then soon: the program is about to end."""
        self._longest_s = 2 * _FIRST_WAIT_S
        self._hurried.set()

    def _wait_for(self, reason: str) -> None:
        if not self.reason:
            log.warning("stream %s: %s: %s", self._stream, self._sink.name, reason)
        self.reason = reason

    async def _pass_on(self, sink: Sink) -> None:
        events = await self._events.wait(self.last, _BEAT_S)
        if not events:
            await sink.beat()
        for event in events:
            async with self._busy:
                try:
                    await sink.send(event)
                except SinkFailed as error:
                    self._maybe_give_up(event, error)
                    raise
                self.sent += 1
                self._done(event)
        self.reason = ""

    def _maybe_give_up(self, event: LoggedEvent, error: SinkFailed) -> None:
        if error.most_tries is None:
            return
        self._tries += 1
        if self._tries >= error.most_tries:
            self.refused += 1
            self.refusal = f"event {event.number}: {error}"
            log.warning(
                "stream %s: %s: event %d is given up after %d tries: %s",
                self._stream,
                self._sink.name,
                event.number,
                self._tries,
                error,
            )
            self._done(event)

    def _done(self, event: LoggedEvent) -> None:
        """Go on with the next event."""
        missed = event.number - self.last - 1
        if missed:
            log.warning("stream %s: %s missed %d events", self._stream, self._sink.name, missed)
        self.missed, self._tries = self.missed + missed, 0
        self._note(event.number)

    async def stop(self, task: asyncio.Task[None]) -> None:
        """End the task of `run`; an event that is under way has a moment to arrive."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._busy.acquire()
        task.cancel()
        await asyncio.wait([task])

    def _note(self, number: int) -> None:
        self.last = number
        part = self._file.with_suffix(".part")
        # Without room on the disk it is known until the server ends.
        with suppress(OSError):
            part.write_text(str(number))
            part.replace(self._file)

    @property
    def waiting(self) -> int:
        """The number of events that the receiver has not taken."""
        return self._events.last - self.last

    @property
    def lacks(self) -> str:
        """The events that the receiver has not taken, in words; empty where it has all."""
        lacks = self.waiting + self.missed + self.refused
        why = self.reason or self.refusal
        text = f"{counted(lacks, 'event')} to the {self._sink.name}"
        return "" if not lacks else f"{text}: {why}" if why else text

    @property
    def document(self) -> dict[str, object]:
        """Its state, as listings have it."""
        counts = {"sent": self.sent, "waiting": self.waiting, "missed": self.missed}
        refused = {"refused": self.refused, "refusal": self.refusal}
        return {**counts, **refused, "reason": self.reason}
