"""A key: who has it, and what it lets them do."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple, Self, get_args

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from fovea_server.auth.quota import Quota
from fovea_server.traffic.principal import Scope

SCOPES: tuple[Scope, ...] = get_args(Scope)

# A prefix by which scanners of secrets find a key that was committed or logged.
_PREFIX = "fov_"
_BYTES = 32
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"(?P<count>[0-9.]+(?:e[0-9]+)?)/(?P<unit>s|m|h)")
_MIN_PER_S = 1 / 3600
# Some 270 years of days: dates end in the year 9999.
_MAX_UNITS = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SPAN = re.compile(r"(?P<count>[0-9]+)(?P<unit>[smhd])")


def new_token() -> str:
    """Make a key of 256 random bits, as it is shown once."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(token: str) -> str:
    """Return what is kept of a key: its SHA-256, hexadecimal.

    A slow hash, as passwords need, would protect nothing: nobody guesses 256 random bits.
    """
    return hashlib.sha256(token.encode()).hexdigest()


class Rate(NamedTuple):
    """So many images a second on average, and at most `burst` at once; `text` as it was written."""

    per_s: float
    burst: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "20/s", "600/m" or "1e4/h"; ValueError says how to write it."""
        found = _RATE.fullmatch(text)
        count = float(found["count"]) if found and found["count"].count(".") < 2 else 0.0
        if found is None or not 0 < count < math.inf:
            raise ValueError(f"a rate is written as 20/s, 600/m or 1e4/h, and not as {text!r}")
        per_s = count / _UNITS[found["unit"]]
        if per_s < _MIN_PER_S:
            raise ValueError(f"a rate is at least 1/h, and {text!r} is less")
        return cls(per_s, max(count, 1.0), text)


def parse_span(text: str, *, least: int = 1) -> timedelta:
    """Parse "90d", "12h", "30m" or "10s", of at least so many; ValueError says how to write it."""
    found = _SPAN.fullmatch(text)
    if found is None or not least <= int(found["count"]) <= _MAX_UNITS:
        raise ValueError(f"a time is written as 90d, 12h, 30m or 10s, and not as {text!r}")
    return timedelta(seconds=int(found["count"]) * _UNITS[found["unit"]])


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"a name has up to 64 letters, digits, dots, '-' and '_', and {text[:80]!r} does not"
        )
    return text


def _rate(text: str) -> str:
    Rate.parse(text)
    return text


def _quota(text: str) -> str:
    Quota.parse(text)
    return text


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Secret(_Entry):
    """A digest of a key, which holds until a time; None for as long as the key does."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    until: AwareDatetime | None = None


class Key(_Entry):
    """An entry of the file of keys.

    Attributes:
        name: for the log and the metrics; it is no secret.
        secrets: the newest first; those before a rotation hold for a grace time.
        scopes: what it lets one do; what only informs takes any key.
        models: patterns of names, as `cam-*`; none for every model.
        rate: of images, as "20/s"; None for no limit.
        quota: of images, as "1e6/day"; None for no limit.
    """

    name: Annotated[str, AfterValidator(_name)]
    secrets: Annotated[tuple[Secret, ...], Field(min_length=1)]
    scopes: tuple[Scope, ...]
    models: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ()
    rate: Annotated[str, AfterValidator(_rate)] | None = None
    quota: Annotated[str, AfterValidator(_quota)] | None = None
    created: AwareDatetime
    expires: AwareDatetime | None = None

    def is_expired(self, now: datetime) -> bool:
        """Return True if its time is over."""
        return self.expires is not None and now >= self.expires
