"""The interface of a connection for its exchanges."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fovea_server.http.v2.messages import Buffer


class Connection(Protocol):
    """Carries exchanges, one after the other."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    tasks: set[asyncio.Task[None]]
    client: tuple[str, int] | None

    def write_large(self, pieces: list[Buffer], size: int) -> None:
        """Write pieces, and count their bytes until they are sent.

        Raises:
            QueueFull: too much is held already.
        """
        ...

    def on_response_complete(self) -> None:
        """Start the next exchange."""
        ...

    def close(self) -> None:
        """Close after all that was written is sent."""
        ...

    def linger(self) -> None:
        """Close, but read on for a while: the client reads the answer only after sending."""
        ...
