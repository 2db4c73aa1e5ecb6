"""One request on its way through a scheduler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fovea_engines.session import Array
from fovea_server.tensors.check import Checked
from fovea_server.tensors.messages import InferRequest

Outputs = dict[str, Array]
"""An array per output of the engine."""


@dataclass(slots=True, eq=False)
class Job:
    """A request that fits its model, from arrival to answer.

    Attributes:
        arrived_ns: `time.monotonic_ns` of its arrival.
        future: set to its outputs, or to an error.
        expiry: timer that ends its wait; None where it may wait for ever.
        at_engine: a thread reads its arrays.
        given_up: set when the thread is done, for a request that was cancelled meanwhile.
    """

    request: InferRequest
    checked: Checked
    arrived_ns: int
    future: asyncio.Future[Outputs]
    expiry: asyncio.TimerHandle | None = None
    at_engine: bool = False
    given_up: asyncio.Future[None] | None = None

    @property
    def rows(self) -> int:
        """Rows that it adds to a batch."""
        return self.checked.rows

    def fits(self, other: Job) -> bool:
        """Return True if both can share a batch: the same inputs and shapes, except the rows."""
        mine, others = self.checked.feeds, other.checked.feeds
        return mine.keys() == others.keys() and all(
            array.shape[1:] == others[name].shape[1:] for name, array in mine.items()
        )

    def leave_queue(self) -> None:
        """Cancel the timer of its wait."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None

    def leave_engine(self) -> None:
        """Mark that no thread reads its arrays any more."""
        self.at_engine = False
        if self.given_up is not None and not self.given_up.done():
            self.given_up.set_result(None)
