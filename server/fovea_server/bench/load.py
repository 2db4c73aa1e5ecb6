"""Loads that are put on a server, and what their requests met."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that each send one request after the other, and wait where Retry-After says so."""

    clients: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests that are due at random times, so many a second (Poisson), whatever is answered."""

    rate: float


Load = ClosedLoop | OpenLoop


@dataclass(frozen=True, slots=True)
class Burst:
    """A load for some time.

    Attributes:
        warmup_s: under the same load, before anything counts.
        seconds: that count; None sends each request once and keeps the answers.
        timeout_s: after which a request without an answer has failed, to a quarter of a second.
    """

    load: Load
    seconds: float | None
    warmup_s: float = 0.0
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens."""

    host: str
    port: int
    https: bool = False


@dataclass(slots=True)
class LoadSample:
    """The requests that ended lately; samples of one burst add up.

    Attributes:
        seconds: of the burst so far, without its warm-up.
        in_time: answers that came while the burst counted: the rate is of these.
        latencies: seconds from when an answered request was due (closed loop: sent).
        late: seconds from when a request was due until it was sent.
        errors: (status, code) -> number and the first message; status 0 without an answer.
        stages: milliseconds in the server, all answers together, by stage.
        answers: body by the number of its request, where the burst keeps them.
        cpu_s: of this process.
        began: the warm-up is over.
        ended: this is the last.
    """

    seconds: float = 0.0
    in_time: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    late: array[float] = field(default_factory=lambda: array("d"))
    errors: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)
    cpu_s: float = 0.0
    began: bool = False
    ended: bool = False

    def add(self, more: LoadSample) -> None:
        """Add a later sample."""
        self.seconds, self.cpu_s = more.seconds, self.cpu_s + more.cpu_s
        self.in_time += more.in_time
        self.latencies.extend(more.latencies)
        self.late.extend(more.late)
        for key, (count, message) in more.errors.items():
            self.add_error(*key, message, count)
        for stage, ms in more.stages.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + ms
        self.answers |= more.answers
        self.began, self.ended = self.began or more.began, more.ended

    def add_error(self, status: int, code: str, message: str, count: int = 1) -> None:
        """Count requests that failed alike."""
        before, first = self.errors.get((status, code), (0, message))
        self.errors[status, code] = before + count, first
