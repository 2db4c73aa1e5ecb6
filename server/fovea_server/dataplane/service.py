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
    """The objects that answer requests over any transport; `app.py` creates them.

    Attributes:
        settings: settings of the server.
        apis: dict from the name of each enabled compatible API to its default model, or None.
        authenticator: checks the API keys and rights of requests.
        models: models of the server.
        plane: data plane, which runs the models.
        extensions: extensions of Triton's protocol: shared memory, trace settings, log settings.
        traffic: logs and measures requests.
        budget: memory budget that counts the bytes of requests and responses.
        json: thread that parses large JSON documents.
        drawing: semaphore that limits concurrent drawing, because it holds the pixels of whole
            images.
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
        """Write pending log lines, stop watching the key file, and release GPU memory."""
        self.extensions.close()
        self.traffic.close()
        self.json.close()
        self.authenticator.close()
