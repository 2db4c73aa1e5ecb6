"""The file of keys: JSON with digests, which is replaced as a whole."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fovea_keys.key import Key
from fovea_preprocess.errors import InvalidOption

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
        lock = os.open(path, os.O_CREAT | os.O_RDWR, _MODE)
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

    Raises:
        InvalidOption: what is there is no file of keys.
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
        after = Keys(keys=change(before)).model_dump_json(indent=1, exclude_defaults=True)
        new = file.with_name(f".{file.name}.new")
        descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _MODE)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(after + "\n")
            stream.flush()
            # Else the server might read it no longer, and would let in who is removed.
            os.fchmod(descriptor, mode)
            if owner != -1 and os.geteuid() == 0:
                os.fchown(descriptor, owner, group)
            os.fsync(descriptor)
        # Who mounted the file alone, as a single secret, cannot replace it: that is an error here.
        new.replace(file)
