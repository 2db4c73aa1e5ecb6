"""The threads that execute what waits in a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from fovea_preprocess.errors import InferenceFailed, Unavailable
from fovea_server.scheduling.execution import Execution, execute, prepare
from fovea_server.scheduling.job import Job
from fovea_server.scheduling.job_queue import JobQueue


class Workers:
    """Runs executions, and prepares jobs ahead of them where their kind asks for that.

    On a CPU, a thread that has computed a batch finishes it before it takes the next one. An engine
    on another device gets the next batch at once, from another thread. `start` starts the threads.

    Args:
        name: of the model.
        executing: number of threads for executions.
        preparing: number of threads that prepare jobs.
        offloads: as `Session.offloads`.
        executed: receives jobs that are done, in any thread.
        waits: called when the next batch still waits for more jobs, in any thread.
        died: receives the jobs of a thread that ends by a fault.
    """

    def __init__(
        self,
        name: str,
        queue: JobQueue,
        *,
        executing: int,
        preparing: int,
        offloads: bool,
        executed: Callable[[Sequence[Job], Sequence[Execution]], None],
        waits: Callable[[], None],
        died: Callable[[Sequence[Job]], None],
    ) -> None:
        self._name = name
        self._queue = queue
        self._offloads = offloads
        self._executed, self._waits, self._died = executed, waits, died
        self._batches: SimpleQueue[list[Job]] = SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"{name}-{kind}", daemon=True)
            for kind, work, count in (
                ("infer", self._work, executing),
                ("decode", self._prepare, preparing),
            )
            for _ in range(count)
        ]

    def start(self) -> None:
        """Start all threads; Unavailable: no more could be started, and `close` ends the others."""
        started: list[threading.Thread] = []
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError as error:
                count, self._threads = len(self._threads), started
                raise Unavailable(
                    f"only {len(started)} of the {count} threads of model '{self._name}' could be "
                    f"started ({error}): lower the count of its instance_group, unload other "
                    "models, or raise the limits on processes (ulimit -u, pids.max) and memory"
                ) from error
            started.append(thread)

    def put(self, jobs: list[Job]) -> None:
        """Pass a batch, as taken from the queue, to a thread."""
        self._batches.put(jobs)

    def close(self) -> list[Job]:
        """End the threads, after what they do now; return jobs that no thread has run."""
        for _ in self._threads:
            self._batches.put([])
        for thread in self._threads:
            thread.join()
        left: list[Job] = []
        with suppress(Empty):
            while True:
                left += self._batches.get_nowait()
        return left

    def _work(self) -> None:
        jobs: list[Job] = []
        done: list[Job] = []
        executions: list[Execution] = []
        try:
            while jobs := self._batches.get():
                while jobs:
                    executions += self._execute(jobs)
                    done += jobs
                    failed = any(each.error is not None for each in executions)
                    jobs = [] if self._offloads or failed else self._next()
                    # A request is answered when all of it is done: the event loop is woken once.
                    if not jobs or jobs[0].request is not done[0].request:
                        self._executed(done, executions)
                        done, executions = [], []
                    if failed and not self._offloads:
                        jobs = self._next()
        except BaseException:
            self._died([*done, *jobs])
            raise

    def _prepare(self) -> None:
        while (job := self._queue.claim()) is not None:
            try:
                error = prepare(self._name, job)
            except BaseException:
                # The job is in the queue, and fails with all that are.
                self._died(())
                raise
            job.prepared = error is None
            # Where it has left the queue meanwhile, somebody else answers it.
            if error is not None and self._queue.withdraw(job):
                job.error = error
                self._executed([job], ())
            elif jobs := self._take():
                self._batches.put(jobs)

    def _execute(self, jobs: Sequence[Job]) -> list[Execution]:
        computed = self._on_computed if self._offloads else None
        alone = self._queue.is_alone
        execution = execute(self._name, jobs, alone, computed)
        if not isinstance(execution.error, InferenceFailed) or len(execution.jobs) == 1:
            return [execution]
        # A single job may be the cause: run each alone, so that the others succeed.
        executions = []
        for job in execution.jobs:
            job.error = None
            executions.append(execute(self._name, [job], alone))
        return executions

    def _on_computed(self) -> None:
        if jobs := self._next():
            self._batches.put(jobs)

    def _next(self) -> list[Job]:
        """End an execution, and take the next batch."""
        self._queue.done()
        return self._take()

    def _take(self) -> list[Job]:
        jobs, wait_s = self._queue.next()
        if wait_s is not None:
            self._waits()
        return jobs
