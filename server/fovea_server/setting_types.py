"""Types of settings that are more than a number or a text, with what they refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

_ORIGIN = re.compile(r"\*|(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]_-]+")


def _several(value: object) -> object:
    """Take one value, as the environment has it, for a tuple of one."""
    return (value,) if isinstance(value, str | Path) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_several), NoDecode]


def _local(folder: object) -> object:
    """Refuse the address of a store in a cloud."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", str(folder)):
        raise ValueError(
            f"{folder} is not a folder of this machine, and remote repositories are not "
            "supported: copy or mount the models, and give the path"
        )
    return folder


Folders = Annotated[
    tuple[Annotated[Path, BeforeValidator(_local)], ...], BeforeValidator(_several), NoDecode
]


def _as_browsers_send(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what no browser sends: capitals, a path, the port that the scheme has anyway."""
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            like = "http://localhost:5173 or https://example.com, or give * for every page"
            raise ValueError(f"browsers send no origin '{origin}': write it as {like}")
    return origins


Origins = Annotated[Texts, AfterValidator(_as_browsers_send)]
