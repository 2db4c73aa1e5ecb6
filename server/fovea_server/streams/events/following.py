"""Follows the events of a stream for a client, which may come back and go on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from difflib import get_close_matches

import orjson

from fovea_preprocess.errors import InvalidOption
from fovea_server.streams.events.feed import EventFeed
from fovea_server.streams.events.log import LoggedEvent
from fovea_server.streams.zones.change import ChangeKind

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class EventLogs:
    """The events of all streams.

    Attributes:
        of: finds those of a stream; NotFound: there is no such stream, or it has none.
        ending: whether an answer about a stream must end: its key, or the server, is going.
    """

    of: Callable[[str], EventFeed]
    ending: Callable[[str], bool]

    async def follow(
        self, stream: str, after: int, kinds: frozenset[str]
    ) -> AsyncIterator[list[LoggedEvent]]:
        """Yield the events behind a number as they come, every second, also if there are none.

        A number behind the newest begins there. Who reads slowly is waited for here, and holds
        these events alone.
        """
        feed = self.of(stream)
        after = min(after, feed.log.last)
        while not (self.ending(stream) or feed.log.closed):
            events = await feed.log.wait(after, _LOOK_S)
            after = events[-1].number if events else after
            yield [each for each in events if not kinds or kind_of(each) in kinds]


def kind_of(event: LoggedEvent) -> str:
    """Return the kind of an event."""
    kind: str = orjson.loads(event.text)["kind"]
    return kind


def kinds_of(given: str) -> frozenset[str]:
    """Read the kinds that a client wants, none for all; InvalidOption: there is no such kind."""
    kinds = frozenset(filter(None, given.split(",")))
    for kind in sorted(kinds - set(ChangeKind)):
        close = get_close_matches(kind, ChangeKind, 1)
        meant = f"did you mean '{close[0]}'? " if close else ""
        raise InvalidOption(
            f"'{kind[:60]}' is no kind of event; {meant}kinds: {', '.join(ChangeKind)}"
        )
    return kinds


def after_of(given: str | None, feed: EventFeed) -> int:
    """Return the number of the last event that a client has; without one it begins now.

    A client that has none may ask for the last ones: -50.
    """
    if given is None:
        return feed.log.last
    if not re.fullmatch(r"-?[0-9]{1,18}", given):
        raise InvalidOption(
            f"the last event is '{given[:60]}'; it must be the number of an event, or -50 for the "
            "last 50"
        )
    return max(0, feed.log.last + int(given)) if given.startswith("-") else int(given)
