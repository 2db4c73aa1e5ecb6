"""Sends events to an HTTP URL, signed as specified at https://www.standardwebhooks.com."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from fovea_preprocess.errors import InvalidOption
from fovea_server.streams.events.log import LoggedEvent
from fovea_server.streams.events.sender import SinkFailed

_TIMEOUT_S = 30.0
_MAX_TRIES, _MAX_TRIES_OF_BUSY = 5, 60
# HTTP statuses of servers and proxies that are overloaded or unavailable for a short time.
_BUSY = frozenset((408, 425, 429, 502, 503, 504))
_MUCH = 1 << 16


class Webhook:
    """Sends each event as a POST request; any 2xx status acknowledges the event.

    All requests for an event have the same header `webhook-id`.

    Args:
        stream: ID of the stream. It is the prefix of the IDs in `webhook-id`.
        address: http or https URL, with user and password if the receiver requires them.
        secret: secret for the signature: "whsec_" and base64 text; None for no signature.
    """

    name = "webhook"

    def __init__(self, stream: str, address: str, secret: str | None) -> None:
        self._stream, self._address = stream, address
        self._key = None if secret is None else _key(secret)

    @staticmethod
    def check(address: str, secret: str | None) -> None:
        """Raise InvalidOption for an invalid URL or an invalid secret."""
        # Import httpx here, because the import takes a tenth of a second and most servers do not
        # need it.
        import httpx

        try:
            right = httpx.URL(address).scheme in ("http", "https") and urlsplit(address).hostname
        except (httpx.InvalidURL, ValueError):
            right = None
        if not right:
            raise InvalidOption("webhook must be a URL like https://host/path")
        if secret is not None:
            _key(secret)

    async def __aenter__(self) -> Self:
        import httpx

        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def send(self, event: LoggedEvent) -> None:
        """Send an event.

        Raises:
            SinkFailed: the receiver did not acknowledge the event.
        """
        import httpx

        name, now = f"{self._stream}-{event.number}", str(int(time.time()))
        headers = {"content-type": "application/json", "webhook-id": name, "webhook-timestamp": now}
        if self._key is not None:
            signed = f"{name}.{now}.".encode() + event.text
            digest = hmac.digest(self._key, signed, hashlib.sha256)
            headers["webhook-signature"] = "v1," + base64.b64encode(digest).decode()
        try:
            # The timeout of httpx limits each read; this timeout limits the whole request.
            async with (
                asyncio.timeout(_TIMEOUT_S),
                self._client.stream(
                    "POST", self._address, content=event.text, headers=headers
                ) as answer,
            ):
                status = answer.status_code
                if int(answer.headers.get("content-length", _MUCH)) < _MUCH:
                    await answer.aread()  # lets the next event use this connection
        except (httpx.HTTPError, TimeoutError) as error:
            away = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise SinkFailed(
                f"the receiver does not respond ({type(error).__name__})",
                None if away else _MAX_TRIES,
            ) from None
        if not 200 <= status < 300:
            tries = _MAX_TRIES_OF_BUSY if status in _BUSY else _MAX_TRIES
            raise SinkFailed(f"the receiver returned status {status}", tries)

    async def beat(self) -> None:
        """Do nothing, because each event uses its own request."""


def _key(secret: str) -> bytes:
    begin, _, text = secret.partition("whsec_")
    key = b""
    if not begin:
        with suppress(binascii.Error):
            key = base64.b64decode(text, validate=True)
    if not key:
        raise InvalidOption(
            "webhook_secret must be whsec_ followed by base64: create one with echo "
            '"whsec_$(openssl rand -base64 32)"'
        )
    return key
