"""A quota: the number of images that a key may send per hour, day or month (UTC)."""

from __future__ import annotations

import logging
import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

from fovea_preprocess.errors import RateLimited
from fovea_preprocess.text import counted

log = logging.getLogger(__name__)

_QUOTA = re.compile(r"(?P<count>[0-9.]+(?:e[0-9]+)?)/(?P<unit>hour|day|month)")
_NAMES = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
_LONGEST = {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=31)}

_TABLE = (
    "CREATE TABLE IF NOT EXISTS used (key TEXT, period TEXT, images INTEGER, "
    "PRIMARY KEY (key, period)) WITHOUT ROWID"
)
_ADD = (
    "INSERT INTO used VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET images = images + excluded.images"
)


class Quota(NamedTuple):
    """Largest number of images per calendar period. `unit` is "hour", "day" or "month"."""

    images: int
    unit: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "1e6/day", "5000/hour" or "2e7/month".

        Raises:
            ValueError: the text does not have this form.
        """
        found = _QUOTA.fullmatch(text)
        count = float(found["count"]) if found and found["count"].count(".") < 2 else 0.0
        if found is None or not 1 <= count < math.inf:
            raise ValueError(
                f"{text!r} is not a quota: write it as 1e6/day, 5000/hour or 2e7/month"
            )
        return cls(int(count), found["unit"])

    def begin(self, now: datetime) -> datetime:
        """Return the start of the period that contains `now`."""
        now = now.replace(minute=0, second=0, microsecond=0)
        if self.unit == "hour":
            return now
        return now.replace(hour=0) if self.unit == "day" else now.replace(hour=0, day=1)

    def end(self, now: datetime) -> datetime:
        """Return the start of the next period."""
        return self.begin(self.begin(now) + _LONGEST[self.unit])

    def period(self, now: datetime) -> str:
        """Return the name of the period that contains `now`.

        If names are sorted as text, their periods are in the order of time.
        """
        return f"{self.begin(now):{_NAMES[self.unit]}}"


class _Count:
    """The numbers of images of a key in one period.

    The event loop changes `taken`. The thread that watches the key file changes `written` and
    `others`.

    Attributes:
        period: name of the period.
        taken: number of images that this server has counted.
        written: number of images in `taken` that are already in the file.
        others: number of images that other servers counted, or this server before it was started
            again.
    """

    __slots__ = ("others", "period", "taken", "written")

    def __init__(self, period: str) -> None:
        self.period, self.taken, self.written, self.others = period, 0, 0, 0


class Meter:
    """Counts the images of a key, and rejects images beyond the key's quota."""

    def __init__(
        self,
        quota: Quota,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        used: _Count | None = None,
    ) -> None:
        self.quota, self._now, self._ends = quota, now, datetime.min.replace(tzinfo=UTC)
        self.count = self._current_count()
        if used is not None and used.period == self.count.period:
            self.count = used

    @property
    def left(self) -> int:
        """Return the number of images that the key may still send in this period."""
        count = self._current_count()
        return max(0, self.quota.images - count.taken - count.others)

    @property
    def ends(self) -> datetime:
        """Return the start of the next period."""
        self._current_count()
        return self._ends

    def take(self, images: int) -> None:
        """Count images.

        Raises:
            RateLimited: fewer images are left in the quota. The error contains the start of the
                next period.
        """
        if images > (left := self.left):
            most, unit = self.quota
            raise RateLimited(
                f"the quota of this key has {left} of {counted(most, 'image')} left for this "
                f"{unit}, but the request has {images}: wait for the next {unit}, which starts at "
                f"{self._ends:%Y-%m-%d %H:%M} UTC",
                (self._ends - self._now()).total_seconds(),
            )
        self.count.taken += images

    def _current_count(self) -> _Count:
        if (now := self._now()) >= self._ends:
            self._ends = self.quota.end(now)
            self.count = _Count(self.quota.period(now))
        return self.count


def usage_of(keys: Path) -> Path:
    """Return the default path of the quota usage for a key file."""
    return keys.with_name(f"{keys.name}.used")


def used_now(file: Path, name: str, quota: Quota) -> int | None:
    """Return the number of images that a key has sent in this period, as stored in the file.

    If the file cannot be read, return None.
    """
    period = quota.period(datetime.now(UTC))
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            sought = "SELECT images FROM used WHERE key = ? AND period = ?"
            found = database.execute(sought, (name, period)).fetchone()
    except sqlite3.Error:
        return None
    return found[0] if found else 0


class UsageFile:
    """The usage of the quotas in an SQLite file, which several servers may share.

    Use this class from one thread at a time. If the file cannot be written, each server counts only
    its own images since its start, and logs the error once.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._failed = file, ""

    def share(self, meters: Iterable[tuple[str, Meter]]) -> bool:
        """Add the images since the last call to the file, and read the counts of other servers.

        Returns:
            True if the file was written, False if an error occurred.
        """
        counts = [(name, meter.count) for name, meter in meters]
        if not counts:
            return True
        try:
            # Allow only the owner to read the file, because names of keys and their usage are
            # private.
            os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(self._file, timeout=1)) as database, database:
                self._share(database, counts)
            self._failed = ""
        except (sqlite3.Error, OSError) as error:
            if self._failed != str(error):
                self._failed = str(error)
                log.error(
                    "this server counts quotas in memory only, because %s cannot be written (%s): "
                    "repair or delete the file, or choose another with --quota-file",
                    self._file,
                    error,
                )
        return not self._failed

    def _share(self, database: sqlite3.Connection, counts: list[tuple[str, _Count]]) -> None:
        database.execute(_TABLE)
        new = [(name, count, count.taken) for name, count in counts if count.taken > count.written]
        rows = [(name, count.period, taken - count.written) for name, count, taken in new]
        database.executemany(_ADD, rows)
        # Delete the counts of earlier periods. Names of periods are in the order of time, so they
        # can be compared.
        over = [(name, count.period) for name, count, _ in new if not count.written]
        database.executemany("DELETE FROM used WHERE key = ? AND period < ?", over)
        database.commit()
        for _, count, taken in new:
            count.written = taken
        # Skip values that are not integers, which another program may have stored.
        found = database.execute("SELECT * FROM used WHERE typeof(images) = 'integer'")
        stored = {row[:2]: row[2] for row in found}
        for name, count in counts:
            count.others = max(0, stored.get((name, count.period), 0) - count.written)
