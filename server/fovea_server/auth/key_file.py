"""The file of keys: JSON with digests, which is replaced as a whole."""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fovea_engines.repository.files import writing
from fovea_preprocess.errors import InvalidOption
from fovea_server.auth.key import Key

# Readable by its owner alone: digests are no keys, and names and rates are nobody's business.
_MODE = 0o600


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
def _locked(file: Path) -> Iterator[None]:
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
    with _locked(file):
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
