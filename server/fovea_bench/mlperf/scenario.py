"""The scenarios of MLPerf Inference: the load of each, and the figure that counts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# The benchmark whose rules hold: a detector, and the newest of them (YOLO11-l, since v6.0).
BENCHMARK = "yolo"
# Of that benchmark in mlperf.conf: images that a run draws from.
SAMPLES = 64
# Of that benchmark in the submission checker: least images of an Offline run.
_OFFLINE_SAMPLES = 1525
# LoadGen makes the queries before the test, and too few end it before its time. Offline has to
# answer all of them; a stream leaves what it does not need.
_MARGIN, _STREAM_MARGIN = 1.2, 4


class Scenario(StrEnum):
    """A load, by the name that MLPerf has for it."""

    SINGLE_STREAM = "SingleStream"
    MULTI_STREAM = "MultiStream"
    OFFLINE = "Offline"
    SERVER = "Server"

    @property
    def at_once(self) -> int | None:
        """Images that are under way at most because the load has no more; None: no such limit."""
        return {self.SINGLE_STREAM: 1, self.MULTI_STREAM: 8}.get(self)

    @property
    def figure(self) -> str:
        """Title of the figure that is compared."""
        titles = {
            self.SINGLE_STREAM: "p90 of a query, ms",
            self.MULTI_STREAM: "p99 of a query of 8, ms",
        }
        return titles.get(self, "images/s")

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of that figure in LoadGen's log: of runs long enough to be judged, and of others."""
        return {
            self.SINGLE_STREAM: ("early_stopping_latency_ss", "result_90.00_percentile_latency_ns"),
            self.MULTI_STREAM: (
                "early_stopping_latency_ms",
                "result_99.00_percentile_per_query_latency_ns",
            ),
            self.OFFLINE: ("result_samples_per_second",),
            self.SERVER: ("result_completed_samples_per_sec",),
        }[self]


class Over(StrEnum):
    """The way from LoadGen to the model."""

    HTTP = "http"
    GRPC = "grpc"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a run, beside those of mlperf.conf, which LoadGen holds.

    Attributes:
        seconds: length of a quick run; None for the ten minutes of mlperf.conf.
        rate: of the scenario Server: queries/s, due at random times.
        p99_ms: of the scenario Server: the limit that 99 in 100 queries must keep.
    """

    scenario: Scenario
    seconds: float | None = None
    rate: float = 0.0
    p99_ms: float = 0.0

    def write(self, path: Path, images_per_s: float) -> None:
        """Write user.conf, from the rate that a warm-up reached under this load."""
        lines: dict[str, str] = {}
        match self.scenario:
            case Scenario.SINGLE_STREAM | Scenario.MULTI_STREAM:
                query_ms = 1e3 * (self.scenario.at_once or 1) / images_per_s
                lines["target_latency"] = str(max(1, int(query_ms / _STREAM_MARGIN)))
            case Scenario.OFFLINE:
                lines["target_qps"] = f"{_MARGIN * images_per_s:.3f}"
                lines["min_query_count"] = str(_OFFLINE_SAMPLES)
            case Scenario.SERVER:
                lines["target_qps"] = f"{self.rate:g}"
                lines["target_latency"] = str(max(1, int(self.p99_ms)))
        if self.seconds is not None:
            lines |= {"min_duration": str(int(1e3 * self.seconds)), "min_query_count": "1"}
        path.write_text("".join(f"*.{self.scenario}.{k} = {v}\n" for k, v in lines.items()))
