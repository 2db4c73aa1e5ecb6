"""A key: who has it, and what it lets them do."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, NamedTuple, Self, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from fovea_engines.repository.files import writing
from fovea_preprocess.errors import InvalidOption
from fovea_server.auth.quota import Quota
from fovea_server.traffic.principal import Scope

# Readable by its owner alone: digests are no keys, and names and rates are nobody's business.
_MODE = 0o600

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


class Keys(BaseModel):
    """The keys of a file; no two have one name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[Key, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Keys:
        names = Counter(key.name for key in self.keys)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"several keys are called {twice[0]}")
        return self


def read_keys(file: Path) -> Keys:
    """Read a file of keys.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no keys, or other things as well.
    """
    try:
        return Keys.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


@contextmanager
def _lock_file(file: Path) -> Iterator[None]:
    """Let one program at a time change a file of keys."""
    path = file.with_name(f".{file.name}.lock")
    try:
        try:
            lock = os.open(path, os.O_CREAT | os.O_RDWR, _MODE)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Nobody can make a file here now, so that all lock the folder.
            lock = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise InvalidOption(
            f"{file} cannot be written ({error.strerror}): name a file in a folder of yours"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def change_keys(file: Path, change: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> None:
    """Replace the keys of a file, which may be absent, by what `change` makes of them.

    On a full disk a change that makes the file no longer, as one that removes a key, is written
    over it.

    Raises:
        InvalidOption: what is there is no file of keys.
        OSError: it cannot be written; it names the file, which is as it was.
    """
    # A link stays one, and what it leads to is changed.
    file = file.resolve()
    with _lock_file(file):
        before: tuple[Key, ...] = ()
        mode, owner, group = _MODE, -1, -1
        try:
            if file.exists():
                before = read_keys(file).keys
                status = file.stat()
                mode, owner, group = status.st_mode & 0o777, status.st_uid, status.st_gid
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"{file} is no file of keys ({error}): name another, or mend it"
            ) from None
        made = Keys(keys=change(before)).model_dump_json(indent=1, exclude_defaults=True)
        after = f"{made}\n".encode()
        new = file.with_name(f".{file.name}.new")
        try:
            with writing(file, len(after)):
                _write_new(new, after, mode, owner, group)
            # Who mounted the file alone, as a single secret, cannot replace it: that is an error
            # here.
            new.replace(file)
        except OSError as error:
            new.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not file.exists() or len(after) > file.stat().st_size:
                raise
            # A key that is taken back must not wait for space.
            _write_over(file, after)


def _write_new(new: Path, content: bytes, mode: int, owner: int, group: int) -> None:
    descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _MODE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        # Else the server might read it no longer, and would let in who is removed.
        os.fchmod(descriptor, mode)
        if owner != -1 and os.geteuid() == 0:
            os.fchown(descriptor, owner, group)
        os.fsync(descriptor)


def _write_over(file: Path, content: bytes) -> None:
    """Write content over a file that is no shorter, in the space that the file has.

    Blanks fill the rest until it is cut off, so that the file can be read at any time.
    """
    with file.open("r+b") as stream:
        stream.write(content.ljust(file.stat().st_size))
        stream.flush()
        os.fsync(stream.fileno())
        stream.truncate(len(content))


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
