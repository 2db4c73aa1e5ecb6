"""The file of keys: JSON with digests, which is replaced as a whole."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fovea_preprocess.errors import InvalidOption
from fovea_server.keys.key import Key

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
    lock = os.open(file.with_name(f".{file.name}.lock"), os.O_CREAT | os.O_RDWR, _MODE)
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
    with _locked(file):
        try:
            before = read_keys(file).keys if file.exists() else ()
        except ValueError as error:
            raise InvalidOption(
                f"{file} is no file of keys ({error}): name another, or mend it"
            ) from None
        after = Keys(keys=change(before)).model_dump_json(indent=1, exclude_defaults=True)
        new = file.with_name(f".{file.name}.new")
        descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _MODE)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(after + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        # Who mounted the file alone, as a single secret, cannot replace it: that is an error here.
        new.replace(file)
