"""Tensors in the queue of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fovea_engines.session import Session
from fovea_preprocess.errors import DeadlineExceeded, InferenceFailed, QueueFull
from fovea_server.scheduling.batching import DynamicBatching
from fovea_server.scheduling.contract import Outputs
from fovea_server.scheduling.inline import InlineExecution
from fovea_server.scheduling.job import Job, JobKind
from fovea_server.statistics.model import Spans
from fovea_server.tensors.check import Checked, request_prefix
from fovea_server.tensors.messages import InferRequest


class TensorKind(JobKind):
    """Tensors for one session."""

    def __init__(self, session: Session, batching: DynamicBatching) -> None:
        super().__init__(batching, InlineExecution(steady=session.steady))
        self._session = session

    def gather(self, jobs: Sequence[Job]) -> Callable[[bool], Outputs]:
        """Join the rows of several jobs; a single one is read in place."""
        parts = [job.checked.feeds for job in jobs if isinstance(job, TensorJob)]
        feeds = parts[0]
        if len(parts) > 1:
            feeds = {name: np.concatenate([part[name] for part in parts]) for name in feeds}

        def infer(alone: bool) -> Outputs:
            outputs = self._session.infer(feeds, alone=alone)
            if len(parts) > 1:
                _check_rows(outputs, sum(job.rows for job in jobs))
            return outputs

        return infer


class TensorJob(Job):
    """A request that fits its model; `outputs` are its rows of every output once it is answered."""

    borrows = True
    request: InferRequest

    def __init__(
        self, kind: TensorKind, request: InferRequest, checked: Checked, arrived_ns: int
    ) -> None:
        super().__init__(kind, request, checked.rows, arrived_ns)
        self.checked = checked
        self.outputs: Outputs = {}
        self.batch = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its inputs."""
        size = 0
        for array in self.checked.feeds.values():
            size += array.nbytes
        return size

    def fits(self, other: Job) -> bool:
        """Return True for the same inputs and shapes, except the rows."""
        assert isinstance(other, TensorJob), "jobs of one kind"
        mine, others = self.checked.feeds, other.checked.feeds
        return mine.keys() == others.keys() and all(
            array.shape[1:] == others[name].shape[1:] for name, array in mine.items()
        )

    def prepare(self) -> None:
        """Do nothing: the request holds its rows."""

    def finish(self, outputs: Outputs, row: int, rows: int) -> None:
        """Keep its rows of the outputs."""
        self.outputs, self.batch = outputs, rows
        if rows > self.rows:
            self.outputs = {name: array[row : row + self.rows] for name, array in outputs.items()}

    def spans(self, began_ns: int, batch: Spans) -> Spans:
        """Return the times of the batch, and the wait for it."""
        return batch._replace(queue=began_ns - self.arrived_ns)

    def queue_full(self, waiting: int, retry_after_s: float) -> QueueFull:
        """Make the error in Triton's words."""
        return QueueFull(
            f"{request_prefix(self.request)}Exceeds maximum queue size", retry_after_s=retry_after_s
        )

    def expired(self) -> DeadlineExceeded:
        """Make the error in Triton's words."""
        return DeadlineExceeded("Request timeout expired")


def _check_rows(outputs: Outputs, rows: int) -> None:
    """Check that the outputs of several requests can be taken apart."""
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise InferenceFailed(
                f"output '{name}' has shape {list(array.shape)} for a batch of {rows} rows, so "
                "requests cannot share a batch: set max_batch_size to 0 in config.pbtxt"
            )
