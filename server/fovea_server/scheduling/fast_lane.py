"""Executions so short that a change of threads would cost more than they do."""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time_ns

from fovea_engines.backends.base import Session
from fovea_engines.backends.cpu import CpuSession
from fovea_server.scheduling.execution import Execution, execute
from fovea_server.v2.check import Checked

# CPU time of a call, nanoseconds. What goes to a thread and back costs about half of this, and
# nothing else is answered meanwhile.
_QUICK_NS = 200_000
# Executions in a row that must have been quick.
_STREAK = 32
# Bytes of a request; larger ones are rarely quick.
_MOST_BYTES = 64 << 10


class FastLane:
    """Runs a model's batches, and learns whether they may run on the event loop.

    A thread's own CPU time is what counts: a neighbour that takes the core, or the wait for the
    interpreter's lock, says nothing about the model. So it goes only for engines that compute in
    the thread that calls them.

    Args:
        name: of the model, for the log.
        session: the engine.
    """

    def __init__(self, name: str, session: Session) -> None:
        self._name = name
        self._session = session
        self._on_caller = isinstance(session, CpuSession)
        # Threads may miss a count; the next execution makes up for it.
        self._quick_in_a_row = 0

    def takes(self, checked: Checked) -> bool:
        """Whether this request may run on the event loop."""
        return self._quick_in_a_row >= _STREAK and (
            sum([array.nbytes for array in checked.feeds.values()]) <= _MOST_BYTES
        )

    def execute(self, batch: Sequence[Checked], *, alone: bool) -> Execution:
        """As `execution.execute`; in a thread, or on the event loop where the lane is open."""
        if not self._on_caller:
            return execute(self._name, self._session, batch, alone=alone)
        began = thread_time_ns()
        execution = execute(self._name, self._session, batch, alone=alone)
        if thread_time_ns() - began < _QUICK_NS:
            self._quick_in_a_row += 1
        else:
            self._quick_in_a_row = 0
        return execution
