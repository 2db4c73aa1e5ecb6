"""Restricts parts of the protocol to clients with a secret.

Source: "Limit Endpoint Access" of Triton's protocol documentation.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Self

from fovea_preprocess.errors import InvalidOption, Restricted

APIS = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
"""The parts that can be restricted; Triton's words."""

# The secret, or the file that has it. A key has none of the two characters.
_SECRET = re.compile(r"(?P<key>[^=@]*)(?P<kind>[=@])(?P<value>.*)", re.DOTALL)
_KEY = re.compile(r"[A-Za-z0-9_.-]+")
# Headers are not longer, and a device has no end.
_LONGEST_FILE = 65_536

# A proxy adds one of these; its own address says nothing about the client. A mesh's, which lies
# beside each pod and connects from loopback, may add the protocol alone.
_OF_PROXIES = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-forwarded-prefix", "x-real-ip"),
)


def is_loopback(address: str | None) -> bool:
    """Return True for an address, or the name, by which only this machine is reached."""
    try:
        ip = ip_address((address or "").partition("%")[0])
    except ValueError:
        return address == "localhost"
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback


class Restrictions:
    """The secrets, (key, value), that parts of the protocol require in a header.

    Parts that have none, beside inference and health, are for clients on this machine, unless
    `for_all` lets everybody use them. The names of headers begin with `prefix`; `noun` is what
    Triton calls such a part in its answers.
    """

    def __init__(
        self,
        secrets: Mapping[str, tuple[str, str]],
        *,
        for_all: bool = False,
        prefix: str = "",
        noun: str = "API",
    ) -> None:
        self._secrets = dict(secrets)
        self._for_all = for_all
        self._prefix, self._noun = prefix, noun

    @classmethod
    def parse(
        cls,
        values: Iterable[str],
        *,
        for_all: bool = False,
        prefix: str = "",
        noun: str = "API",
    ) -> Self:
        """Parse the operator's options, each ``API[,API...]:KEY=VALUE`` or ``...:KEY@FILE``.

        Raises:
            InvalidOption: one has another form, names an unknown API or one twice, or a file that
                cannot be read.
        """
        secrets: dict[str, tuple[str, str]] = {}
        for given in values:
            names, _, secret = given.partition(":")
            found = _SECRET.fullmatch(secret)
            if found is None or not (
                names.strip() and found["key"].strip() and found["value"].strip()
            ):
                raise InvalidOption(
                    f"'{names}' restricts nothing; say API[,API...]:KEY=VALUE, for example "
                    "model-repository,logging:admin-key=SECRET, or KEY@FILE for a secret in a file"
                )
            key, value = found["key"].strip(), found["value"].strip()
            if found["kind"] == "@":
                value = _read(names, Path(value))
            # The characters that headers of HTTP and of gRPC can carry.
            if not (_KEY.fullmatch(key) and value.isascii() and value.isprintable()):
                raise InvalidOption(
                    f"the secret of '{names}' cannot be sent as a header: make its key of letters, "
                    "digits, '-', '_' and '.', and its value of printable ASCII characters"
                )
            for name in map(str.strip, names.split(",")):
                if name not in APIS:
                    raise InvalidOption(
                        f"there is no API '{name}' to restrict; there are {', '.join(APIS)}"
                    )
                if name in secrets:
                    raise InvalidOption(
                        f"restricted api '{name}' can not be specified in multiple config groups"
                    )
                secrets[name] = key, value
        return cls(secrets, for_all=for_all, prefix=prefix, noun=noun)

    def secret(self, api: str) -> tuple[str, str] | None:
        """Look up the key and value that an API requires; None if it is open."""
        return self._secrets.get(api)

    def check(self, api: str, header: Callable[[str], str | None]) -> None:
        """Raise Restricted if a request lacks the secret of an API in its headers."""
        key = self.missing(api, header)
        if key is not None:
            expected = f"expecting header '{self._prefix}{key}'"
            raise Restricted(f"This {self._noun} is restricted, {expected}")

    def missing(self, api: str, header: Callable[[str], str | None]) -> str | None:
        """Find the key of the secret that a request lacks in its headers; None if it is allowed."""
        if api not in self._secrets:
            return None
        key, value = self._secrets[api]
        given = header(f"{self._prefix}{key}") or ""
        # In constant time, so that the time does not reveal parts of the secret.
        return None if hmac.compare_digest(given.encode(), value.encode()) else key

    def check_local(
        self, api: str, client: str | None, header: Callable[[str], str | None]
    ) -> None:
        """Raise Restricted if a client, by its address, may not use an API that has no secret."""
        if api not in self._secrets and not self.lets_all_in(client, header):
            raise Restricted(
                "this request is for programs of the server's machine alone, as the server asks "
                "for no keys: others may predict and ask for health. Start it with --keys FILE "
                "(`fovea key add` makes it), or with --no-keys behind a gateway that checks who "
                "asks"
            )

    def lets_all_in(self, client: str | None, header: Callable[[str], str | None]) -> bool:
        """Return True for a client on this machine, not a proxy of others, or where all may in."""
        return self._for_all or (is_loopback(client) and not any(map(header, _OF_PROXIES)))


def _read(names: str, file: Path) -> str:
    """Read a secret; the end of its line is not part of it."""
    advice = f"the secret of '{names}' cannot be read from {file}"
    try:
        with file.open("rb") as stream:
            content = stream.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise InvalidOption(
            f"{advice} ({error.strerror}): name a file that the server may read"
        ) from None
    secret = content.decode("latin-1").strip()
    if not secret or len(content) > _LONGEST_FILE:
        raise InvalidOption(f"{advice}: it must have the secret, and nothing else")
    return secret
