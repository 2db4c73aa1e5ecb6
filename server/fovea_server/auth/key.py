"""API keys: the key file, its entries, and the formats of rates and times."""

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

# Mode of the file: only the owner may read it. It contains digests instead of keys, but also names
# and rates, which are private.
_MODE = 0o600

SCOPES: tuple[Scope, ...] = get_args(Scope)

# Prefix of keys, by which secret scanners can detect a key in a commit or a log.
_PREFIX = "fov_"
_BYTES = 32
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"(?P<count>[0-9.]+(?:e[0-9]+)?)/(?P<unit>s|m|h)")
_MIN_PER_S = 1 / 3600
# Largest number in a time span. 100,000 days are about 270 years; a longer span could end after the
# year 9999, which Python cannot represent.
_MAX_UNITS = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SPAN = re.compile(r"(?P<count>[0-9]+)(?P<unit>[smhd])")


class Keys(BaseModel):
    """The API keys in a file. Their names are unique."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[Key, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Keys:
        names = Counter(key.name for key in self.keys)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"several keys have the name {twice[0]}")
        return self


def read_keys(file: Path) -> Keys:
    """Read a key file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the content is invalid. The message contains the name of the field.
    """
    try:
        return Keys.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


@contextmanager
def _lock_file(file: Path) -> Iterator[None]:
    """Hold an exclusive lock, so that only one program at a time changes a key file."""
    path = file.with_name(f".{file.name}.lock")
    try:
        try:
            lock = os.open(path, os.O_CREAT | os.O_RDWR, _MODE)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # If the disk is full, the lock file cannot be created. Lock the directory instead.
            lock = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise InvalidOption(
            f"{file} cannot be written ({error.strerror}): give a file in a folder that you may "
            "write"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def change_keys(file: Path, change: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> None:
    """Replace the keys of a file by the result of `change`. The file need not exist.

    If the disk is full, a change that does not make the file longer, such as the removal of a key,
    is written over the old content.

    Raises:
        InvalidOption: the file is not a key file, or its directory is not writable.
        OSError: the file cannot be written and is unchanged.
    """
    # If the file is a symbolic link, change the target of the link.
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
                f"{file} is not a keys file ({error}): correct it, or give another file"
            ) from None
        made = Keys(keys=change(before)).model_dump_json(indent=1, exclude_defaults=True)
        after = f"{made}\n".encode()
        new = file.with_name(f".{file.name}.new")
        try:
            with writing(file, len(after)):
                _write_new(new, after, mode, owner, group)
            # This call fails if the file itself is a mount point, for example a mounted secret.
            new.replace(file)
        except OSError as error:
            new.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not file.exists() or len(after) > file.stat().st_size:
                raise
            # Revoking a key must be possible on a full disk.
            _write_over(file, after)


def _write_new(new: Path, content: bytes, mode: int, owner: int, group: int) -> None:
    descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _MODE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        # Keep the mode and the owner, so that the server can still read the file. Otherwise the
        # server would keep the old keys, and a removed key would stay valid.
        os.fchmod(descriptor, mode)
        if owner != -1 and os.geteuid() == 0:
            os.fchown(descriptor, owner, group)
        os.fsync(descriptor)


def _write_over(file: Path, content: bytes) -> None:
    """Overwrite a file that is at least as long as `content`. This needs no free disk space.

    First the rest of the file is filled with spaces, then the file is truncated. The file is
    therefore valid JSON at any time.
    """
    with file.open("r+b") as stream:
        stream.write(content.ljust(file.stat().st_size))
        stream.flush()
        os.fsync(stream.fileno())
        stream.truncate(len(content))


def new_token() -> str:
    """Return a new key with 256 random bits. It is shown to the user once and never stored."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(token: str) -> str:
    """Return the hexadecimal SHA-256 of a key, which the key file stores instead of the key.

    A fast hash is sufficient, because a key has 256 random bits and cannot be guessed like a
    password.
    """
    return hashlib.sha256(token.encode()).hexdigest()


class Rate(NamedTuple):
    """A rate limit: images per second on average, and at most `burst` images at once.

    Attributes:
        per_s: average number of images per second.
        burst: largest number of images at once.
        text: the rate as the operator wrote it.
    """

    per_s: float
    burst: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "20/s", "600/m" or "1e4/h".

        Raises:
            ValueError: the text does not have this form, or the rate is below 1/h.
        """
        found = _RATE.fullmatch(text)
        count = float(found["count"]) if found and found["count"].count(".") < 2 else 0.0
        if found is None or not 0 < count < math.inf:
            raise ValueError(f"{text!r} is not a rate: write it as 20/s, 600/m or 1e4/h")
        per_s = count / _UNITS[found["unit"]]
        if per_s < _MIN_PER_S:
            raise ValueError(f"the rate {text!r} is too low: write at least 1/h")
        return cls(per_s, max(count, 1.0), text)


def parse_span(text: str, *, least: int = 1) -> timedelta:
    """Parse "90d", "12h", "30m" or "10s".

    Raises:
        ValueError: the text does not have this form, or its number is below `least` or above
            100,000.
    """
    found = _SPAN.fullmatch(text)
    if found is None or not least <= int(found["count"]) <= _MAX_UNITS:
        raise ValueError(f"{text!r} is not a duration: write it as 90d, 12h, 30m or 10s")
    return timedelta(seconds=int(found["count"]) * _UNITS[found["unit"]])


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"{text[:80]!r} is not a valid key name: use up to 64 letters, digits, dots, '-' and "
            "'_'"
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
    """The digest of one secret of a `Key`.

    The secret expires at the time `until`. If `until` is None, it expires together with the `Key`.
    """

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    until: AwareDatetime | None = None


class Key(_Entry):
    """An entry of the key file.

    Attributes:
        name: name in the log and the metrics. It is not secret.
        secrets: digests of the key, the newest first. After a rotation, old digests stay valid for
            a grace time.
        scopes: rights of the key. Requests that only read information need a key, but no scope.
        models: patterns of model names such as `cam-*`; empty for every model.
        rate: rate limit for images, such as "20/s"; None for no limit.
        quota: quota for images, such as "1e6/day"; None for no limit.
        created: time of creation.
        expires: time from which the key is invalid; None for never.
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
        """Return whether the key has expired at `now`."""
        return self.expires is not None and now >= self.expires
