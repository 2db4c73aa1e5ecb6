"""The objects that all transports share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from fovea_server.auth.authenticator import Authenticator
from fovea_server.byte_budget import ByteBudget
from fovea_server.dataplane.dataplane import DataPlane
from fovea_server.dataplane.extensions import Extensions
from fovea_server.dataplane.models import Models
from fovea_server.json_text import JsonThread
from fovea_server.settings import Settings
from fovea_server.traffic.traffic import Traffic


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """The objects that answer requests over any transport; `app.py` makes them.

    Attributes:
        apis: of other software that are served -> the model that the operator named, or None.
        authenticator: lets requests in.
        budget: counts the bytes of requests and answers that are held.
        json: parses long JSON.
        drawing: drawing keeps the pixels of a whole image, so few are drawn at a time.
        extensions: of Triton's protocol: shared memory, traces, settings of the log.
        traffic: logs and measures requests.
    """

    settings: Settings
    apis: Mapping[str, str | None]
    authenticator: Authenticator
    models: Models
    plane: DataPlane
    extensions: Extensions
    traffic: Traffic
    budget: ByteBudget
    json: JsonThread
    drawing: asyncio.Semaphore

    def close(self) -> None:
        """Log all that was not logged yet, stop following the keys, and release GPUs' memory."""
        self.extensions.close()
        self.traffic.close()
        self.json.close()
        self.authenticator.close()
