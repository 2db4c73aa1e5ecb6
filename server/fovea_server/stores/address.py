"""The address of a model repository in a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Address:
    """An address such as s3://bucket/prefix; it holds no secrets, so it may be logged.

    Attributes:
        url: without a slash at its end.
    """

    url: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address; ValueError says what is wrong."""
        scheme, _, rest = text.partition("://")
        scheme, rest = scheme.lower(), rest.rstrip("/")
        host, _, path = rest.partition("/")
        # hf://org/name@revision has its @ in the path; one behind a colon ends a password.
        if "@" in host or (scheme == "hf" and re.search(r":[^/]*@", rest)):
            raise ValueError(
                f"{scheme}://***@{host.rpartition('@')[2]} has credentials in it, which others "
                "could read: give them in the environment"
            )
        if re.search(r"[?#*\[\]\\\s]|::", rest):
            raise ValueError(
                f"{scheme}://{host} and what follows may have no ?, #, *, [], \\, :: or blanks: "
                "give the folder that holds the models; credentials belong in the environment"
            )
        if not host or {"", ".", ".."} & set(path.split("/") if path else ()):
            raise ValueError(f"{text} is not whole: give it as {scheme}://{_FORMS[scheme]}")
        if scheme == "hf" and not path:
            raise ValueError(f"{text} is not whole: give it as hf://{_FORMS['hf']}")
        return cls(f"{scheme}://{rest}")

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        """The part before ://."""
        return self.url.partition(":")[0]

    @property
    def folder_name(self) -> str:
        """A name for a local folder: no other address has the same."""
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.url)[:80]
        return f"{readable}-{sha256(self.url.encode()).hexdigest()[:12]}"


_FORMS = {
    "s3": "BUCKET/PREFIX",
    "gs": "BUCKET/PREFIX",
    "az": "CONTAINER/PREFIX",
    "hf": "ORG/NAME@REVISION/PREFIX",
    "https": "HOST/PATH",
    "http": "HOST/PATH",
}


def parse_address(text: str) -> Address | None:
    """Read the address of a store; None for the path of a folder; ValueError says what is wrong."""
    found = _SCHEME.match(text)
    if found is None:
        return None
    if (scheme := found[1].lower()) not in _FORMS:
        known = ", ".join(f"{known}://" for known in sorted(_FORMS))
        raise ValueError(f"{scheme}:// is no store that is known: use {known}, or a folder")
    return Address.parse(text)
