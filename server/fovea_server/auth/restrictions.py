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
"""Names of the APIs that can be restricted. They are Triton's names."""

# Pattern of a secret: KEY=VALUE, or KEY@FILE for a file that contains the value. KEY contains
# neither "=" nor "@".
_SECRET = re.compile(r"(?P<key>[^=@]*)(?P<kind>[=@])(?P<value>.*)", re.DOTALL)
_KEY = re.compile(r"[A-Za-z0-9_.-]+")
# Largest size of a secret file in bytes. Headers are not longer. The limit also ends the reading of
# an endless device such as /dev/zero.
_LONGEST_FILE = 65_536

# Headers that proxies add. If one is present, the connection's address is the proxy's address, not
# the client's. The sidecar of a service mesh connects from loopback, and may add only
# x-forwarded-proto.
_OF_PROXIES = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-forwarded-prefix", "x-real-ip"),
)


def is_loopback(address: str | None) -> bool:
    """Return whether an address is a loopback address or the name "localhost"."""
    try:
        ip = ip_address((address or "").partition("%")[0])
    except ValueError:
        return address == "localhost"
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback


class Restrictions:
    """The secrets, as (key, value), that APIs require in a request header.

    Inference and health are open to all clients if they have no secret. Other APIs without a secret
    are open only to clients on this machine, unless `for_all` is True. The name of the header is
    `prefix` and the key. `noun` is Triton's word for an API in error messages.
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
            InvalidOption: an option is malformed, contains an unknown API, repeats an API, or
                contains a file that cannot be read.
        """
        secrets: dict[str, tuple[str, str]] = {}
        for given in values:
            names, _, secret = given.partition(":")
            found = _SECRET.fullmatch(secret)
            if found is None or not (
                names.strip() and found["key"].strip() and found["value"].strip()
            ):
                raise InvalidOption(
                    f"the restriction of '{names}' is incomplete: write API[,API...]:KEY=VALUE, "
                    "for example model-repository,logging:admin-key=SECRET, or KEY@FILE for a "
                    "secret in a file"
                )
            key, value = found["key"].strip(), found["value"].strip()
            if found["kind"] == "@":
                value = _read(names, Path(value))
            # Only printable ASCII characters are allowed, because headers of both HTTP and gRPC can
            # contain them.
            if not (_KEY.fullmatch(key) and value.isascii() and value.isprintable()):
                raise InvalidOption(
                    f"the secret of '{names}' cannot be sent as a header: use letters, digits, "
                    "'-', '_' and '.' for its key, and printable ASCII characters for its value"
                )
            for name in map(str.strip, names.split(",")):
                if name not in APIS:
                    raise InvalidOption(
                        f"unknown API '{name}'; the APIs to restrict are {', '.join(APIS)}"
                    )
                if name in secrets:
                    raise InvalidOption(
                        f"restricted api '{name}' can not be specified in multiple config groups"
                    )
                secrets[name] = key, value
        return cls(secrets, for_all=for_all, prefix=prefix, noun=noun)

    def secret(self, api: str) -> tuple[str, str] | None:
        """Return the (key, value) that an API requires, or None if the API is not restricted."""
        return self._secrets.get(api)

    def check(self, api: str, header: Callable[[str], str | None]) -> None:
        """Raise Restricted if the headers of a request lack the secret of an API."""
        key = self.missing(api, header)
        if key is not None:
            expected = f"expecting header '{self._prefix}{key}'"
            raise Restricted(f"This {self._noun} is restricted, {expected}")

    def missing(self, api: str, header: Callable[[str], str | None]) -> str | None:
        """Return the key of the missing secret, or None if the request is allowed."""
        if api not in self._secrets:
            return None
        key, value = self._secrets[api]
        given = header(f"{self._prefix}{key}") or ""
        # Compare in constant time, so that the duration reveals nothing about the secret.
        return None if hmac.compare_digest(given.encode(), value.encode()) else key

    def check_local(
        self, api: str, client: str | None, header: Callable[[str], str | None]
    ) -> None:
        """Check that a client may use an API, if the API has no secret.

        Args:
            api: name of the API.
            client: address of the client; None if it is unknown.
            header: function that returns the value of a request header by its name, or None.

        Raises:
            Restricted: the client is on another machine, and the server is not open to all clients.
        """
        if api not in self._secrets and not self.lets_all_in(client, header):
            raise Restricted(
                "this server has no keys, so other machines may only predict and check health. "
                "Start the server with --keys FILE (`fovea key add` creates it), or with "
                "--no-keys behind a gateway that authenticates clients"
            )

    def lets_all_in(self, client: str | None, header: Callable[[str], str | None]) -> bool:
        """Return whether the server is open to all clients, or the client is on this machine.

        A proxy on this machine does not count as a client on this machine.
        """
        return self._for_all or (is_loopback(client) and not any(map(header, _OF_PROXIES)))


def _read(names: str, file: Path) -> str:
    """Read a secret from a file, without surrounding white space."""
    advice = f"the secret of '{names}' cannot be read from {file}"
    try:
        with file.open("rb") as stream:
            content = stream.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise InvalidOption(
            f"{advice} ({error.strerror}): give a file that the server may read"
        ) from None
    secret = content.decode("latin-1").strip()
    if not secret or len(content) > _LONGEST_FILE:
        raise InvalidOption(f"{advice}: the file must contain only the secret")
    return secret
