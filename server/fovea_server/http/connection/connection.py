"""What an exchange needs of the connection that carries it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fovea_server.http.v2.messages import Buffer


class Connection(Protocol):
    """What carries exchanges, one after the other."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    tasks: set[asyncio.Task[None]]
    client: tuple[str, int] | None

    def write_large(self, pieces: list[Buffer], size: int) -> None:
        """Write, and count the bytes until they are sent.

        Raises:
            QueueFull: too much is held already.
        """
        ...

    def on_response_complete(self) -> None:
        """The next exchange may start."""
        ...

    def close(self) -> None:
        """End, when what was written is sent."""
        ...

    def linger(self) -> None:
        """End, but let the client send on for a while: it looks for no answer before."""
        ...
