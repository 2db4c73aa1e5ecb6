"""What both transports of the v2 protocol share, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from fovea_server.dataplane import DataPlane
from fovea_server.settings import Settings


@dataclass(frozen=True, slots=True)
class Service:
    """The parts that answer v2 requests, whatever carries them.

    Attributes:
        settings: what the operator decided.
        plane: infers.
    """

    settings: Settings
    plane: DataPlane
