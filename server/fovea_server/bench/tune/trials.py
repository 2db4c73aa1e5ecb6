"""Serves a model with one setting after another, and measures each setting."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil

from fovea_client import with_key
from fovea_engines.repository.config_edit import edit_text
from fovea_engines.repository.config_pbtxt import CONFIG_FILE, read_config
from fovea_engines.session import Closing
from fovea_server.bench.level import Generator, Level
from fovea_server.bench.load import Burst, ClosedLoop
from fovea_server.bench.payload import image_payload
from fovea_server.bench.repository_copy import config_source, copy_model
from fovea_server.bench.sender import error_of
from fovea_server.bench.server_process import ServerProcess
from fovea_server.bench.target import Target
from fovea_server.bench.tune.candidates import BuiltVersion
from fovea_server.bench.tune.run import Run
from fovea_server.bench.tune.setting import Setting, configure

_WARMUP_S = 0.7
# Length of a run. A run is extended until this number of responses is expected, because the p99 of
# fewer responses is unreliable. `_LONGEST` limits the extended length, as a multiple of the usual
# length.
_ANSWERS = 100
_LONGEST = 4.0
# Length of a long run, which decides between settings, as a multiple of the usual length.
_LONG = 3.0
# Usual time in seconds for loading a model with another setting.
_START_S = 0.7
_LOAD_S = 600.0


class ForeignCpu:
    """Measures the CPU time of other programs, from the construction of the object on.

    Args:
        cores: number of cores that this process and its children need. If the process may run on
            more cores, other programs may use the remaining cores.
    """

    def __init__(self, cores: int) -> None:
        self._places = os.sched_getaffinity(0)
        self._spare = len(self._places) - cores
        self._began = time.monotonic()
        self._busy_s, self._own_s = self._all(), _own_cpu_s()

    def mean_cores(self) -> float:
        """Return the mean number of cores that other programs took away from this process."""
        seconds = time.monotonic() - self._began
        foreign_s = (self._all() - self._busy_s) - (_own_cpu_s() - self._own_s)
        return max(0.0, foreign_s / seconds - self._spare)

    def _all(self) -> float:
        """Return the busy time of these cores in seconds, for all programs.

        Time that the host of a virtual machine took away ("steal") is included.
        """
        every = psutil.cpu_times(percpu=True)
        mine = [every[place] for place in self._places if place < len(every)]
        busy = (one.user + one.nice + one.system + getattr(one, "steal", 0.0) for one in mine)
        return float(sum(busy))


def _own_cpu_s() -> float:
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


class Trials(Closing):
    """A server with one model, whose config.pbtxt is rewritten for each setting.

    Args:
        folder: directory of the model, which does not change.
        candidates: versions that may be served; the first one is served now.
        images: directory of the images to send.
        cores: number of cores of this machine.
        seconds: usual length of a run, in seconds.
        flags: additional flags of `fovea serve`.

    Attributes:
        config: present configuration of the model.
        before: text of the model's config.pbtxt; empty if the file is missing.
    """

    def __init__(
        self,
        folder: Path,
        candidates: Sequence[BuiltVersion],
        images: Path,
        *,
        cores: int,
        seconds: float,
        flags: Sequence[str] = (),
    ) -> None:
        self._candidates = {candidate.version: candidate for candidate in candidates}
        self._present = candidates[0]
        self._cores, self._seconds = cores, seconds
        self.config = read_config(folder / CONFIG_FILE)
        self.before = config_source(folder / CONFIG_FILE)
        self._served: Setting | None = None
        self._rates: dict[Setting, float] = {}
        self._beside_s = _WARMUP_S + _START_S
        with ExitStack() as stack:
            self._folder = stack.enter_context(copy_model(folder))
            server = stack.enter_context(ServerProcess(self._folder.parent, folder.name, flags))
            self._target = stack.enter_context(Target(server.url, folder.name, None))
            payload = image_payload(self._target, images)
            generator = Generator(self._target.address, payload.timed)
            self._generator = stack.enter_context(generator)
            http = httpx.Client(base_url=server.url, headers=with_key({}), timeout=_LOAD_S)
            self._http = stack.enter_context(http)
            self._load_path = f"/v2/repository/models/{quote(folder.name, safe='')}/load"
            self._open = stack.pop_all()

    def lasts(self, long: bool) -> float:
        """Estimate the duration of a run in seconds.

        The estimate uses the slowest setting and the longest pause so far.
        """
        return self._length(min(self._rates.values(), default=0.0), long) + self._beside_s

    def _length(self, rate: float, long: bool) -> float:
        seconds = self._seconds * (_LONG if long else 1.0)
        return max(seconds, min(_ANSWERS / rate, _LONGEST * self._seconds)) if rate else seconds

    def measure(self, setting: Setting, clients: int, long: bool) -> Run:
        """Serve the model with a setting, put a load on it, and return the measurement."""
        began = time.monotonic()
        if setting != self._served and (failure := self._load(setting)) is not None:
            return Run(setting, clients, 0.0, float("inf"), failure=failure)
        seconds = self._length(self._rates.get(setting, 0.0), long)
        level, others = Level(ClosedLoop(clients)), ForeignCpu(self._cores)
        for sample in self._generator.apply(Burst(level.load, seconds, _WARMUP_S)):
            level.sample.add(sample)
        self._rates[setting] = level.rate
        failure = None
        for (status, code), (count, message) in level.sample.errors.items():
            failure = f"{count} x {status} {code}: {message}"
        p99_ms = level.latency_ms(99)
        infinite = float("inf") if p99_ms is None else p99_ms
        taken = others.mean_cores()
        self._beside_s = max(self._beside_s, time.monotonic() - began - seconds)
        return Run(setting, clients, level.rate, infinite, failure, taken_cores=taken)

    def _load(self, setting: Setting) -> str | None:
        """Serve the model with another setting; return the error if that failed, otherwise None."""
        (self._folder / CONFIG_FILE).write_text(self._text_with(setting, pin=True), "utf-8")
        answer = self._http.post(self._load_path)
        if answer.status_code != httpx.codes.OK:
            self._served = None
            return error_of(answer.content)[1]
        self._served = setting
        return None

    def text(self, setting: Setting) -> str:
        """Return the text of the model's config.pbtxt with a setting; its version is not in it."""
        return self._text_with(setting, pin=False)

    def _text_with(self, setting: Setting, *, pin: bool) -> str:
        candidate = self._candidates[setting.version]
        config = configure(self.config, setting, self._present, candidate, self._cores, pin=pin)
        return edit_text(self.before, config)

    def close(self) -> None:
        """Stop the server; further calls do nothing."""
        self._open.close()
