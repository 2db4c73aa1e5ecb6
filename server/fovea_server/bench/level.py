"""The measurements under one level of load, while they are made and afterwards."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import uvloop

from fovea_engines.repository.accuracy import AnyAccuracy
from fovea_engines.session import Closing
from fovea_preprocess.errors import Unavailable
from fovea_server.bench.load import Burst, ClosedLoop, Endpoint, Load, LoadSample
from fovea_server.bench.payload import Payload
from fovea_server.bench.sender import apply
from fovea_server.bench.server_process import ServerProcess
from fovea_server.bench.target import Counters, Target
from fovea_server.offline.accuracy import answered_accuracy

PERCENTILES = (50, 95, 99)

# Key of the total time of an image in the server's durations. It is left out, because all other
# keys are stages.
_TOTAL = "total"
_OUTSIDE = "outside"


class Generator(Closing):
    """Sends requests to one server from a separate process.

    Args:
        address: address of the server.
        requests: complete requests, with headers and body; they are sent one after another, again
            and again.
    """

    def __init__(self, address: Endpoint, requests: Sequence[bytes]) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_generate, args=(theirs, address, requests), daemon=True
        )
        # The child process inherits a signal mask that blocks Ctrl-C. This process handles Ctrl-C,
        # and still needs the samples of the child.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def apply(self, burst: Burst) -> Iterator[LoadSample]:
        """Put a load on the server; yield a sample a few times per second.

        Read all samples of a burst. If you do not read a burst to its end, close the generator.
        """
        try:
            self._pipe.send(burst)
            while True:
                sample: LoadSample = self._pipe.recv()
                yield sample
                if sample.ended:
                    return
        except (EOFError, OSError) as error:
            raise Unavailable("the load generator process ended: run the command again") from error

    def close(self) -> None:
        """End the process; further calls do nothing."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _generate(pipe: Connection, address: Endpoint, requests: Sequence[bytes]) -> None:
    # uvloop resets the signal mask, so Ctrl-C is ignored here too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The limit on open files is raised, because an open loop needs a connection for each request in
    # flight.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    while True:
        try:
            burst: Burst = pipe.recv()
        except EOFError:
            return
        uvloop.run(apply(address, requests, burst, pipe.send))


@dataclass(slots=True)
class Level:
    """The measurements under one load; they grow while the load runs.

    Attributes:
        load: the load.
        sample: sum of all samples of the load generator.
        batch: mean batch size of the server's executions; None if the server's statistics cannot be
            read.
        stages: mean time in milliseconds in each stage of the server. The time outside of the
            stages is "outside": the network, reading and writing, and the generator. Empty if the
            server reports no stages.
        server_cpu: number of cores that the server used; None if it runs on another machine.
        accuracy: accuracy of the responses under this load; None if there are no labels.
        accuracy_missing: number of labelled images without a response.
        complete: False if the measurement was interrupted.
    """

    load: Load
    sample: LoadSample = field(default_factory=LoadSample)
    batch: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    server_cpu: float | None = None
    accuracy: AnyAccuracy | None = None
    accuracy_missing: int = 0
    complete: bool = False

    @property
    def title(self) -> str:
        """Name of the load, for example "4 clients" or "50/s"."""
        if isinstance(self.load, ClosedLoop):
            return f"{self.load.clients} client{'s' * (self.load.clients > 1)}"
        return f"{self.load.rate:g}/s"

    @property
    def rate(self) -> float:
        """Responses per second."""
        return self.sample.in_time / self.sample.seconds if self.sample.seconds else 0.0

    @property
    def generator_cpu(self) -> float:
        """Number of cores that the load generator used; at most 1."""
        return self.sample.cpu_s / self.sample.seconds if self.sample.seconds else 0.0

    @property
    def failed(self) -> int:
        """Number of requests that got an error or no response."""
        return sum(count for count, _ in self.sample.errors.values())

    def latency_ms(self, percentile: float) -> float | None:
        """Return a percentile of the latencies, in milliseconds.

        Return None if there are no responses.
        """
        latencies = self.sample.latencies
        # The method "higher" returns a measured value, and does not interpolate.
        found = np.percentile(latencies, percentile, method="higher") if latencies else None
        return None if found is None else 1e3 * float(found)

    def telling_ms(self, percentile: float) -> float | None:
        """Return the result of `latency_ms`, or None if there are too few responses.

        With too few responses, the percentile would be the slowest response. For the p99, fewer
        than 100 responses are too few.
        """
        few = len(self.sample.latencies) * (100 - percentile) < 100
        return None if few else self.latency_ms(percentile)

    @property
    def late_p99_ms(self) -> float | None:
        """The 99th percentile of the delays of requests, in milliseconds.

        A delay is the time from when a request was due until it was sent. None if there are fewer
        than 100 requests.
        """
        late = self.sample.late
        return 1e3 * float(np.percentile(late, 99)) if len(late) >= 100 else None

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as plain JSON types."""
        latencies = self.sample.latencies
        return {
            "load": {"kind": type(self.load).__name__, **asdict(self.load)},
            "seconds": round(self.sample.seconds, 3),
            "answers": len(latencies),
            "rate": round(self.rate, 3),
            "latency_ms": {
                "mean": _round(1e3 * sum(latencies) / len(latencies) if latencies else None),
                **{f"p{p}": _round(self.telling_ms(p)) for p in PERCENTILES},
                "max": _round(self.latency_ms(100)),
            },
            "errors": [
                {"status": status or None, "code": code, "count": count, "message": message}
                for (status, code), (count, message) in self.sample.errors.items()
            ],
            "stages_ms": {stage: round(ms, 3) for stage, ms in self.stages.items()},
            "batch": _round(self.batch),
            "server_cpu": _round(self.server_cpu),
            "generator_cpu": round(self.generator_cpu, 3),
            "late_p99_ms": _round(self.late_p99_ms),
            "accuracy": None if self.accuracy is None else asdict(self.accuracy),
            "accuracy_missing": self.accuracy_missing,
            "complete": self.complete,
        }


def measure_levels(
    bursts: Iterable[Burst], payload: Payload, target: Target, server: ServerProcess | None = None
) -> Iterator[list[Level]]:
    """Put one load after another on a server, and measure it.

    Yields the list of levels a few times per second. It is always the same list object. The last
    level has the measurements so far; its stages and accuracy are set when its load has ended.
    """
    levels: list[Level] = []
    with ExitStack() as stack:
        generator = stack.enter_context(Generator(target.address, payload.timed))
        judge = None
        if payload.labelled is not None:
            judge = stack.enter_context(Generator(target.address, payload.judged))
        for burst in bursts:
            level = Level(burst.load)
            levels.append(level)
            for _ in _apply_timed(level, generator, burst, target, server):
                yield levels
            if judge is not None and payload.labelled is not None:
                answers: dict[int, bytes] = {}
                for sample in judge.apply(replace(burst, seconds=None, warmup_s=0.0)):
                    answers |= sample.answers
                    yield levels
                level.accuracy = answered_accuracy(answers, payload.labelled)
                level.accuracy_missing = len(payload.judged) - len(answers)
            level.complete = True
            yield levels


def _apply_timed(
    level: Level, generator: Generator, burst: Burst, target: Target, server: ServerProcess | None
) -> Iterator[None]:
    before: Counters | None = None
    cpu_s = 0.0
    for sample in generator.apply(burst):
        if sample.began:
            before = target.counters()
            cpu_s = 0.0 if server is None else server.cpu_s
        if server is not None and sample.seconds and not (sample.ended and level.server_cpu):
            # The time after the end of the load is left out, because then only the last responses
            # arrive.
            level.server_cpu = (server.cpu_s - cpu_s) / sample.seconds
        level.sample.add(sample)
        yield
    after = target.counters()
    if before is not None and after is not None:
        level.batch = (after.rows - before.rows) / max(1, after.executions - before.executions)
    level.stages = _stages(level, before, after)


def _stages(level: Level, before: Counters | None, after: Counters | None) -> dict[str, float]:
    """Return the mean time of each stage in milliseconds.

    The times are read from the responses, or from the server's statistics if the responses have
    none.
    """
    if not (count := len(level.sample.latencies)):
        return {}
    stages = {stage: ms / count for stage, ms in level.sample.stages.items() if stage != _TOTAL}
    if not stages and before is not None and after is not None:
        requests = max(1, after.requests - before.requests)
        stages = {name: (ns - before.ns[name]) / 1e6 / requests for name, ns in after.ns.items()}
    if stages:
        mean = 1e3 * sum(level.sample.latencies) / count
        stages[_OUTSIDE] = max(0.0, mean - sum(stages.values()))
    return stages


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
