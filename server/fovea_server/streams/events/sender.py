"""Sends the events of a log to one receiver, in order, with retries."""

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
    """Raised if a receiver did not accept an event. The message has the reason, but no address.

    Attributes:
        most_tries: number of tries after which the event is dropped, so that it does not block the
            events after it. None if the receiver is unreachable; the event is then tried without a
            limit.
    """

    def __init__(self, reason: str, most_tries: int | None = None) -> None:
        super().__init__(reason)
        self.most_tries = most_tries


class Sink(Protocol):
    """A connection to a receiver. Enter it before the first event.

    Its methods may raise SinkFailed.
    """

    name: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def send(self, event: LoggedEvent) -> None:
        """Send an event, and return after the receiver has accepted it."""

    async def beat(self) -> None:
        """Check the connection. This method is called regularly if there are no events."""


class Sender:
    """Sends the events of a log, and stores the number of the last accepted event in a file.

    If the receiver rejects an event repeatedly, the event is dropped. An event can be sent twice,
    if the machine stops after the receiver has accepted it and before its number is stored. The
    number of the event is then the same both times.

    Attributes:
        last: number of the last accepted or dropped event.
        sent: number of events accepted since the start.
        missed: number of events that were removed from the log before they could be sent.
        refused: number of events that were dropped because the receiver rejected them.
        refusal: text with the last dropped event and the reason; "" if no event was dropped.
        reason: reason why events wait; "" if there is no problem.
    """

    def __init__(self, events: EventLog, sink: Sink, folder: Path, stream: str) -> None:
        self._events, self._sink, self._stream = events, sink, stream
        self._file = folder / f"{sink.name}.sent"
        self._busy, self._hurried = asyncio.Lock(), asyncio.Event()
        self._longest_s = _LONGEST_WAIT_S
        self.sent, self.missed, self.refused, self.reason = 0, 0, 0, ""
        self.refusal = ""
        self._tries = 0
        """Number of tries to send the current event."""
        noted = self._file.read_text() if self._file.exists() else ""
        self.last = min(int(noted), events.last) if noted.isdecimal() else events.last
        self._note(self.last)

    async def run(self) -> None:
        """Send events until the task is cancelled."""
        wait_s = _FIRST_WAIT_S
        while True:
            before = self.last
            try:
                async with self._sink as sink:
                    while True:
                        await self._pass_on(sink)
            except SinkFailed as error:
                self._wait_for(str(error))
            except Exception as error:  # noqa: BLE001  (the next attempt may work)
                self._wait_for(f"events cannot be sent: {type(error).__name__}")
            wait_s = _FIRST_WAIT_S if self.last > before else min(2 * wait_s, self._longest_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s * random.uniform(0.5, 1)):
                    await self._hurried.wait()
            self._hurried.clear()

    def hurry(self) -> None:
        """Try again now, and then at short intervals, because the program is about to end."""
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
                "stream %s: %s: event %d was dropped after %d tries: %s",
                self._stream,
                self._sink.name,
                event.number,
                self._tries,
                error,
            )
            self._done(event)

    def _done(self, event: LoggedEvent) -> None:
        """Store that an event was accepted or dropped, and continue with the next event."""
        missed = event.number - self.last - 1
        if missed:
            log.warning(
                "stream %s: %s did not get %d events, because the log had deleted them",
                self._stream,
                self._sink.name,
                missed,
            )
        self.missed, self._tries = self.missed + missed, 0
        self._note(event.number)

    async def stop(self, task: asyncio.Task[None]) -> None:
        """Stop the task of `run`. An event in flight gets a short time to arrive."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._busy.acquire()
        task.cancel()
        await asyncio.wait([task])

    def _note(self, number: int) -> None:
        self.last = number
        part = self._file.with_suffix(".part")
        # If the disk is full, the number is stored only in memory, and is lost when the server
        # ends.
        with suppress(OSError):
            part.write_text(str(number))
            part.replace(self._file)

    @property
    def waiting(self) -> int:
        """Return the number of events that the receiver has not accepted yet."""
        return self._events.last - self.last

    @property
    def lacks(self) -> str:
        """Return a text about the events that the receiver lacks, or "" if it lacks none."""
        lacks = self.waiting + self.missed + self.refused
        why = self.reason or self.refusal
        text = f"{counted(lacks, 'event')} to the {self._sink.name}"
        return "" if not lacks else f"{text}: {why}" if why else text

    @property
    def document(self) -> dict[str, object]:
        """Return the state of the receiver, as lists of streams show it."""
        counts = {"sent": self.sent, "waiting": self.waiting, "missed": self.missed}
        refused = {"refused": self.refused, "refusal": self.refusal}
        return {**counts, **refused, "reason": self.reason}
