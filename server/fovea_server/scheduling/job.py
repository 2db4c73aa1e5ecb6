"""A piece of work in the queue of a model, and what all pieces of one kind have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from fovea_preprocess.errors import DeadlineExceeded, FoveaError, QueueFull
from fovea_server.scheduling.batching import DynamicBatching
from fovea_server.scheduling.contract import Outputs
from fovea_server.scheduling.inline import InlineExecution
from fovea_server.statistics.model import Spans
from fovea_server.tensors.image_messages import ImageRequest
from fovea_server.tensors.messages import InferRequest


class JobKind(ABC):
    """The work of a model that comes from one source: tensors, or images.

    Attributes:
        ahead: most jobs that are prepared before an execution takes them; 0 where the execution
            prepares its jobs itself.
        batching: decides which jobs of this kind form a batch, and when.
        inline: decides whether they may run on the event loop.
    """

    ahead = 0

    def __init__(self, batching: DynamicBatching, inline: InlineExecution) -> None:
        self.batching = batching
        self.inline = inline

    @abstractmethod
    def gather(self, jobs: Sequence[Job]) -> Callable[[bool], Outputs]:
        """Make a batch of prepared jobs; return the call that runs it, with `alone`."""


class Job(ABC):
    """Rows of one request, from arrival to answer.

    A job waits in the queue. Where its kind is prepared ahead, a thread claims it and prepares it
    there. An execution takes prepared jobs out of the queue; then they are answered.

    Attributes:
        rows: that it adds to a batch.
        turn: in its level of the queue; the rows that its client was given before.
        arrived_ns: `time.monotonic_ns` of its arrival.
        future: done when the job is answered; None for one that the event loop runs itself.
        expiry: timer that ends its wait; None where it may wait for ever.
        apart: it is prepared in a thread of its own, ahead of an execution.
        claimed: a thread has begun to prepare it.
        prepared: an execution may take it.
        error: the reason why it has no answer.
        times: of its execution.
        answered: it has its outcome.
        given_up: done at the end of its execution, for a request that was cancelled meanwhile.
    """

    borrows: ClassVar[bool]
    """Its arrays are memory of the client: cancelling waits until the engine has read them."""

    def __init__(
        self,
        kind: JobKind,
        request: InferRequest | ImageRequest,
        rows: int,
        arrived_ns: int,
        *,
        apart: bool = False,
    ) -> None:
        self.kind = kind
        self.request = request
        self.rows = rows
        self.turn = 0
        self.arrived_ns = arrived_ns
        self.future: asyncio.Future[None] | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.apart = apart
        self.claimed = not kind.ahead
        self.prepared = not self.ahead
        self.error: FoveaError | None = None
        self.times = Spans()
        self.answered = False
        self.given_up: asyncio.Future[None] | None = None

    @property
    def ahead(self) -> bool:
        """True if it is prepared before an execution takes it."""
        return self.apart or self.kind.ahead > 0

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of its inputs; of its pixels for an image."""

    @abstractmethod
    def fits(self, other: Job) -> bool:
        """Return True if it can share a batch with another of its kind."""

    @abstractmethod
    def prepare(self) -> None:
        """Make its rows; raises what is wrong with the request."""

    @abstractmethod
    def finish(self, outputs: Outputs, row: int, rows: int) -> None:
        """Keep its part, from `row` on, of the outputs of a batch of `rows`."""

    @abstractmethod
    def spans(self, began_ns: int, batch: Spans) -> Spans:
        """Return its times; the execution of its batch began then, and took these."""

    @abstractmethod
    def queue_full(self, waiting: int, retry_after_s: float) -> QueueFull:
        """Make the error for a request that finds no room behind `waiting` others."""

    @abstractmethod
    def expired(self) -> DeadlineExceeded:
        """Make the error for a request that waited longer than its policy allows."""

    @property
    def is_wanted(self) -> bool:
        """True while somebody waits for its answer, and there can be one."""
        return self.error is None and (self.future is None or not self.future.done())
