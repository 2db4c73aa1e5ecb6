"""The figures of one level of load, during the measurement and after it."""

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

# Key of the total time of an image, which is left out, because all other keys are stages.
_TOTAL = "total"
_OUTSIDE = "outside"


class Generator(Closing):
    """Sends requests to one server from a separate process.

    Args:
        address: address of the server.
        requests: complete requests, heads with bodies, that are sent in turn.
    """

    def __init__(self, address: Endpoint, requests: Sequence[bytes]) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_generate, args=(theirs, address, requests), daemon=True
        )
        # The child inherits a mask that blocks Ctrl-C: the parent handles it, and still needs
        # samples.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def apply(self, burst: Burst) -> Iterator[LoadSample]:
        """Put a load on the server; yield a sample a few times per second.

        Read all samples of a burst. After a burst that was not read to its end, close the
        generator.
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
    # uvloop resets the signal mask.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An open loop has a connection for each request that waits.
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
    """The figures of a burst so far.

    Attributes:
        load: load of the burst.
        sample: sum of all samples.
        batch: mean batch size of the executions; None if the statistics cannot be read.
        stages: mean milliseconds in each stage of the server. "outside" is the rest: the network,
            reading and writing, and the generator. Empty if the server reports no stages.
        server_cpu: number of cores that the server used; None if it runs on another machine.
        accuracy: accuracy of the responses under this load; None without labels.
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
        """Name of the load: "4 clients", "50/s"."""
        if isinstance(self.load, ClosedLoop):
            return f"{self.load.clients} client{'s' * (self.load.clients > 1)}"
        return f"{self.load.rate:g}/s"

    @property
    def rate(self) -> float:
        """Responses per second."""
        return self.sample.in_time / self.sample.seconds if self.sample.seconds else 0.0

    @property
    def generator_cpu(self) -> float:
        """Number of cores that the generator used; at most 1."""
        return self.sample.cpu_s / self.sample.seconds if self.sample.seconds else 0.0

    @property
    def failed(self) -> int:
        """Number of requests that got no response or an error."""
        return sum(count for count, _ in self.sample.errors.values())

    def latency_ms(self, percentile: float) -> float | None:
        """Return the latency that a percentage of the responses did not exceed.

        None without responses.
        """
        latencies = self.sample.latencies
        # "higher" returns an observed value, and does not interpolate.
        found = np.percentile(latencies, percentile, method="higher") if latencies else None
        return None if found is None else 1e3 * float(found)

    def telling_ms(self, percentile: float) -> float | None:
        """Return the latency like `latency_ms`, or None if there are too few responses.

        With too few responses the percentile would be the slowest response: for p99, fewer than
        100.
        """
        few = len(self.sample.latencies) * (100 - percentile) < 100
        return None if few else self.latency_ms(percentile)

    @property
    def late_p99_ms(self) -> float | None:
        """99th percentile of the delay from due to sent, in ms.

        None with fewer than 100 requests.
        """
        late = self.sample.late
        return 1e3 * float(np.percentile(late, 99)) if len(late) >= 100 else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain JSON types."""
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
    """Put one load after another on a server.

    Yields the list of levels a few times per second; it is always the same list. The last level has
    its figures so far. Its stages and its accuracy follow when it is `complete`.
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
            # The time after the burst does not count: then only the last responses arrive.
            level.server_cpu = (server.cpu_s - cpu_s) / sample.seconds
        level.sample.add(sample)
        yield
    after = target.counters()
    if before is not None and after is not None:
        level.batch = (after.rows - before.rows) / max(1, after.executions - before.executions)
    level.stages = _stages(level, before, after)


def _stages(level: Level, before: Counters | None, after: Counters | None) -> dict[str, float]:
    """Return the mean time of each stage, from the responses or else from the statistics."""
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
