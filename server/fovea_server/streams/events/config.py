"""The settings of events: lines, zones and receivers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fovea_preprocess.errors import InvalidOption
from fovea_server.streams.events.mqtt import Mqtt
from fovea_server.streams.events.webhook import Webhook
from fovea_server.streams.frames.address import check_login
from fovea_server.streams.scene import ChangeKind
from fovea_server.streams.zones import Shape, read_shapes, seconds

ADDRESSES = ("webhook", "mqtt")
"""Settings that make the server open connections. Only the operator may set them."""
KEYS = (
    *("lines", "zones", "events", "debounce", "lost_after", "event_images"),
    *(*ADDRESSES, "webhook_secret"),
)


@dataclass(frozen=True, slots=True)
class EventConfig:
    """The settings of a stream's events.

    Attributes:
        shapes: lines and zones.
        kinds: kinds of events to report.
        debounce_s: time in seconds that a change must last before it counts.
        lost_s: time in seconds without a detection after which an object is lost.
        images: largest number of stored event images.
        webhook: URL of a webhook; None for no webhook.
        webhook_secret: secret that signs webhook requests; None for no signature.
        mqtt: URL of an MQTT broker; None for no broker.
    """

    shapes: tuple[Shape, ...]
    kinds: frozenset[str]
    debounce_s: float
    lost_s: float
    images: int
    webhook: str | None
    webhook_secret: str | None
    mqtt: str | None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> EventConfig | None:
        """Parse the settings in `KEYS`. If `given` has none of them, return None.

        Raises:
            InvalidOption: a setting is invalid; the message names it.
        """
        if not any(given.get(key) is not None for key in KEYS):
            return None
        shapes = read_shapes(_texts(given, "lines"), _texts(given, "zones"))
        kinds = frozenset(_texts(given, "events") or ChangeKind)
        if unknown := kinds - set(ChangeKind):
            raise InvalidOption(
                f"unknown kind of event '{min(unknown)[:60]}'; the kinds are "
                f"{', '.join(ChangeKind)}"
            )
        webhook, secret, mqtt = (_text(given, key) for key in ("webhook", "webhook_secret", "mqtt"))
        for address in (webhook, mqtt):
            check_login(address or "")
        if webhook is not None:
            Webhook.check(webhook, secret)
        elif secret is not None:
            raise InvalidOption(
                "webhook_secret has no effect without webhook: set webhook to the URL of the "
                "receiver"
            )
        if mqtt is not None:
            Mqtt.check(mqtt)
        return cls(
            shapes,
            kinds,
            seconds("debounce", given.get("debounce", "300ms")),
            seconds("lost_after", given.get("lost_after", "2s")),
            _images(given.get("event_images", 0)),
            webhook,
            secret,
            mqtt,
        )


def hide_secrets(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without secrets. Of each URL, only the scheme, host and port are returned."""
    safe = {key: value for key, value in given.items() if key != "webhook_secret"}
    for key in ADDRESSES:
        if isinstance(given.get(key), str):
            parts = urlsplit(given[key])
            safe[key] = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return safe


def _texts(given: Mapping[str, Any], key: str) -> list[str]:
    value = given.get(key)
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise InvalidOption(f"{key} must be a text or a list of texts")
    return texts


def _text(given: Mapping[str, Any], key: str) -> str | None:
    value = given.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidOption(f"{key} must be a text that is not empty")
    return value


def _images(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
        raise InvalidOption(
            f"event_images is '{str(value)[:60]}'; it must be a whole number, 0 to 1000"
        )
    return value
