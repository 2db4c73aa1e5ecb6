"""The URL of a model repository in a store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of a repository, such as s3://bucket/prefix.

    It contains no secrets and may be logged.

    Attributes:
        url: URL without a slash at the end.
    """

    url: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL.

        Raises:
            ValueError: the URL contains credentials or forbidden characters, or a part is missing.
                The message has the reason.
        """
        scheme, _, rest = text.partition("://")
        scheme, rest = scheme.lower(), rest.rstrip("/")
        host, _, path = rest.partition("/")
        # In hf://ORG/NAME@REVISION the "@" is part of the path. If a ":" comes before the "@", the
        # text between them is a password.
        if "@" in host or (scheme == "hf" and re.search(r":[^/]*@", rest)):
            raise ValueError(
                f"{scheme}://***@{host.rpartition('@')[2]} contains credentials, which other "
                "users could read: set them in environment variables"
            )
        if re.search(r"[?#*\[\]\\\s]|::", rest):
            raise ValueError(
                f"{scheme}://{host} must not contain ?, #, *, [], \\, :: or blanks: give only the "
                "folder of the models, and set credentials in environment variables"
            )
        if not host or {"", ".", ".."} & set(path.split("/") if path else ()):
            raise ValueError(f"{text} is incomplete: write {scheme}://{_FORMS[scheme]}")
        if scheme == "hf" and not path:
            raise ValueError(f"{text} is incomplete: write hf://{_FORMS['hf']}")
        return cls(f"{scheme}://{rest}")

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        """Return the scheme of the URL: the part before "://"."""
        return self.url.partition(":")[0]

    @property
    def folder_name(self) -> str:
        """Return the name of a local directory for this URL. Each URL has a different name."""
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
    """Parse the URL of a store. If the text is a local path, return None.

    Raises:
        ValueError: the scheme is unknown, or the URL is invalid.
    """
    found = _SCHEME.match(text)
    if found is None:
        return None
    if (scheme := found[1].lower()) not in _FORMS:
        known = ", ".join(f"{known}://" for known in sorted(_FORMS))
        raise ValueError(f"{scheme}:// is not a supported store: use {known}, or a folder")
    return Address.parse(text)
