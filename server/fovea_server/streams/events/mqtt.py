"""Sends events to an MQTT broker, and publishes counts as retained messages for Home Assistant."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

import orjson

from fovea_engines.backends.installing import install_extra
from fovea_preprocess.errors import InvalidOption
from fovea_server.streams.events.log import LoggedEvent
from fovea_server.streams.events.sender import SinkFailed

if TYPE_CHECKING:
    from aiomqtt import Client

_TIMEOUT_S = 10.0
_MAX_TRIES = 5
Counts = Mapping[str, Mapping[str, int]]


class Mqtt:
    """Publishes each event to PREFIX/STREAM/events, and counts to PREFIX/STREAM/counts/NAME.

    PREFIX/STREAM/status is "online" while the stream is live. Otherwise it is "offline", even after
    the server has stopped or has lost its connection.

    Args:
        stream: ID of the stream.
        address: mqtt://user:password@host:1883/prefix, or mqtts://; the default prefix is "fovea".
        counts: function that returns the counts of each line and zone by name.
        live: function that returns whether the stream is live.
    """

    name = "mqtt"

    def __init__(
        self, stream: str, address: str, counts: Callable[[], Counts], live: Callable[[], bool]
    ) -> None:
        self._address, self._stream = urlsplit(address), stream
        self._counts, self._live = counts, live
        self._base = f"{self._address.path.strip('/') or 'fovea'}/{stream}"
        self._status = f"{self._base}/status"

    @staticmethod
    def check(address: str) -> None:
        """Raise InvalidOption if an MQTT URL is invalid, or the MQTT package is not installed."""
        try:
            parts = urlsplit(address)
            right = parts.scheme in ("mqtt", "mqtts") and parts.hostname and parts.port != 0
        except ValueError:
            right = False
        if not right or any(each in address for each in "+#"):
            raise InvalidOption("mqtt must be a URL like mqtt://user:password@host:1883/prefix")
        if find_spec("aiomqtt") is None:
            raise InvalidOption(
                "mqtt needs a package that is not installed (pip install 'fovea-serve[streams]'): "
                f"{install_extra('streams')}"
            )

    async def __aenter__(self) -> Self:
        from aiomqtt import Client, MqttError, TLSParameters, Will

        address, safe = self._address, self._address.scheme == "mqtts"
        self._client: Client = Client(
            address.hostname or "",
            address.port or (8883 if safe else 1883),
            username=None if address.username is None else unquote(address.username),
            password=None if address.password is None else unquote(address.password),
            identifier=f"fovea-{secrets.token_hex(8)}",
            will=Will(self._status, "offline", qos=1, retain=True),
            tls_params=TLSParameters() if safe else None,
            timeout=_TIMEOUT_S,
            keepalive=15,
        )
        try:
            await self._client.__aenter__()
        except (MqttError, OSError) as error:
            raise SinkFailed(_reason(error)) from None
        self._published: dict[str, Mapping[str, int]] = {}
        self._published_live: bool | None = None
        try:
            for topic, sensor in self._sensors():
                await self._publish(topic, orjson.dumps(sensor))
            await self.beat()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        from aiomqtt import MqttError

        with suppress(MqttError, OSError, TimeoutError, SinkFailed):
            async with asyncio.timeout(1):
                try:
                    # If the connection is lost, the broker publishes the last will ("offline")
                    # instead.
                    if SinkFailed not in error:
                        await self._publish(self._status, b"offline")
                finally:
                    await self._client.__aexit__(None, None, None)

    async def send(self, event: LoggedEvent) -> None:
        """Publish an event and changed counts. Return when the broker has acknowledged them."""
        await self._publish_counts()
        if self._published_live != self._live():
            await self._publish_status()
        try:
            await self._publish(f"{self._base}/events", event.text, retain=False)
        except SinkFailed as error:
            # Limit the number of tries, because a broker may close the connection if it rejects a
            # message.
            raise SinkFailed(str(error), _MAX_TRIES) from None

    async def beat(self) -> None:
        """Publish whether the stream is live.

        If the connection to the broker is lost, this raises SinkFailed.
        """
        await self._publish_counts()
        await self._publish_status()

    async def _publish_status(self) -> None:
        live = self._live()
        await self._publish(self._status, b"online" if live else b"offline")
        self._published_live = live

    async def _publish_counts(self) -> None:
        for name, counts in self._counts().items():
            if self._published.get(name) != counts:
                await self._publish(f"{self._base}/counts/{name}", orjson.dumps(counts))
                self._published[name] = counts

    async def _publish(self, topic: str, payload: bytes, *, retain: bool = True) -> None:
        from aiomqtt import MqttError

        try:
            await self._client.publish(topic, payload, qos=1, retain=retain, timeout=_TIMEOUT_S)
        except (MqttError, OSError) as error:
            raise SinkFailed(f"the connection to the broker is lost: {error}") from None

    def _sensors(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (topic, message) pairs from which Home Assistant discovers the counts."""
        device = {"identifiers": [f"fovea_{self._stream}"], "name": f"Fovea {self._stream}"}
        return [
            (
                f"homeassistant/sensor/fovea_{self._stream.replace('.', '_')}/{name}_{key}/config",
                {
                    "name": f"{name} {key}",
                    "unique_id": f"fovea_{self._stream}_{name}_{key}",
                    "state_topic": f"{self._base}/counts/{name}",
                    "value_template": f"{{{{ value_json['{key}'] }}}}",
                    "availability_topic": self._status,
                    "state_class": "measurement" if key == "objects" else "total_increasing",
                    "device": device,
                },
            )
            for name, counts in self._counts().items()
            for key in counts
        ]


def _reason(error: Exception) -> str:
    """Return why the connection failed. aiomqtt stores the socket's error as the context."""
    from aiomqtt.exceptions import MqttConnectError

    if isinstance(error, MqttConnectError):
        return f"the broker rejected the connection: {error}"
    cause = error if isinstance(error, OSError) else error.__context__
    if isinstance(cause, ConnectionRefusedError):
        return "the connection was refused: check that the broker runs, and that the port is right"
    return f"the broker cannot be reached: {error}"
